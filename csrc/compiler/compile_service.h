// Kernels compiled in other threads, by their source text: each once in a process, and once on a disk.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "compiler/disk_cache.h"
#include "compiler/slang_library.h"
#include "compiler/source_folders.h"

namespace anymps::compiler {

// Thread-safe. Threads and their Slang sessions are created when there is work that the caches do not have,
// and end when they have had none for a while. After fork() the child must make another one.
class CompileService {
  public:
    using Words = std::vector<uint32_t>;

    struct Options {
        std::string library;               // path of libslang-compiler.so
        std::vector<std::string> folders;  // what sources import, searched in this order
        std::string cache_folder;          // SPIR-V and serialized modules are kept below it
        unsigned threads = 1;
        std::chrono::milliseconds patience{10000};  // of a thread without work
    };

    // Throws std::runtime_error with one sentence where the library cannot be opened or a folder is missing.
    explicit CompileService(Options options);
    ~CompileService() { stop(); }

    const Options& options() const { return options_; }
    const std::string& version() const { return library_.version(); }

    // Begins to compile a source in another thread, if nobody has; returns at once.
    void start(const std::string& source);

    // Opens Slang in another thread and reads what a source imports, which takes the first kernel 250 ms,
    // and 1.5 s where these texts have never been read; returns at once.
    void prepare(const std::string& source);

    // The SPIR-V words of the source's entry point `main_kernel`; waits for them. Throws std::runtime_error
    // with the compiler's diagnostics and the numbered source, the same ones each time. The words live as
    // long as the service.
    const Words& get(const std::string& source);

    // The same for all entry points of the source, of whatever names: packed (compiler/entry_points.h).
    const Words& get_all(const std::string& source);

    // Ends the threads, after the kernels they are at; get() throws for those that had not begun. For the end
    // of the process, and safe to call twice.
    void stop();

    // Sources that Slang has compiled here, and not a cache.
    uint64_t compilations() const;
    // Sessions of Slang that this took: SlangLibrary::sessions().
    uint64_t sessions() const { return library_.sessions(); }

  private:
    struct Job;
    struct Worker {
        std::thread thread;
        bool ended = true;
    };

    // What is made of a source: its imports read, main_kernel, all of its entry points.
    enum class Wanted { kImports, kKernel, kAll };
    using Key = std::pair<std::string, Wanted>;

    const Words& get(const Key& key);
    std::shared_ptr<Job> job(const Key& key);
    void add_worker();
    void work(Worker& self);
    void run(Job& job, std::unique_ptr<SlangSession>& session);
    bool find_cached(Job& job) const;
    void compile(Job& job, SlangSession& session);
    std::string cache_name(const Key& key) const;

    const Options options_;
    const SlangLibrary library_;
    const SourceFolders sources_;
    const DiskCache cache_;
    ModuleCache modules_;
    // Held by the first thread that uses Slang: others wait for the serialized form of what it reads as text.
    std::mutex first_mutex_;
    std::atomic<bool> has_read_{false};

    mutable std::mutex mutex_;  // guards what follows
    std::condition_variable work_there_, work_done_;
    std::map<Key, std::shared_ptr<Job>> jobs_;
    std::deque<std::shared_ptr<Job>> queue_;
    std::vector<std::unique_ptr<Worker>> workers_;
    unsigned idle_ = 0;  // workers that wait for work
    uint64_t compilations_ = 0;
    bool stopping_ = false;
};

}  // namespace anymps::compiler
