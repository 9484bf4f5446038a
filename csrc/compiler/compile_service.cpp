#include "compiler/compile_service.h"

#include <malloc.h>
#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "compiler/entry_points.h"
#include "compiler/sha256.h"

namespace anymps::compiler {
namespace {

// Of what turns sources into words; goes up when patch_spirv or slang_options.h change.
constexpr const char* kGeneration = "1";

constexpr const char* kStopped = "The run-time compiler has been stopped: the process is ending.";

std::string cache_folder(const CompileService::Options& options) {
    return options.cache_folder + "/slang";
}

// Serialized modules are read back only by the Slang that wrote them, and stand for these texts alone.
std::string modules_folder(const CompileService::Options& options, const SlangLibrary& library,
                           const SourceFolders& sources) {
    const std::string key = Sha256().add_field(library.version()).add_field(sources.hash()).finish_hex();
    return cache_folder(options) + "/modules_" + key.substr(0, 32);
}

std::vector<uint32_t> words_in(const std::string& bytes) {
    std::vector<uint32_t> words(bytes.size() / sizeof(uint32_t));
    std::memcpy(words.data(), bytes.data(), words.size() * sizeof(uint32_t));
    return words;
}

}  // namespace

struct CompileService::Job {
    const Key& key;  // of jobs_
    bool done = false;
    Words words;
    std::string error;  // what get() throws, where not empty
};

CompileService::CompileService(Options options)
    : options_(std::move(options)),
      library_(options_.library),
      sources_(options_.folders),
      cache_(cache_folder(options_)),
      modules_(DiskCache(modules_folder(options_, library_, sources_))) {}

std::string CompileService::cache_name(const Key& key) const {
    Sha256 hash;
    hash.add_field(kGeneration).add_field(library_.version()).add_field(sources_.hash()).add_field(key.first);
    return hash.finish_hex() + (key.second == Wanted::kAll ? ".spvs" : ".spv");
}

void CompileService::start(const std::string& source) {
    const std::lock_guard lock(mutex_);
    job({source, Wanted::kKernel});
}

void CompileService::prepare(const std::string& source) {
    const std::lock_guard lock(mutex_);
    job({source, Wanted::kImports});
}

std::shared_ptr<CompileService::Job> CompileService::job(const Key& key) {
    const auto [entry, is_new] = jobs_.try_emplace(key);
    std::shared_ptr<Job>& job = entry->second;
    if (!is_new) return job;
    job.reset(new Job{entry->first});
    if (stopping_) {
        job->error = kStopped;
        job->done = true;
        return job;
    }
    queue_.push_back(job);
    if (idle_ >= queue_.size()) {
        work_there_.notify_one();
        return job;
    }
    try {
        add_worker();
    } catch (const std::system_error&) {
        if (std::any_of(workers_.begin(), workers_.end(), [](const auto& w) { return !w->ended; }))
            return job;
        queue_.pop_back();
        jobs_.erase(entry);
        throw;
    }
    return job;
}

void CompileService::add_worker() {
    auto slot = std::find_if(workers_.begin(), workers_.end(), [](const auto& w) { return w->ended; });
    if (slot == workers_.end()) {
        if (workers_.size() >= std::max(options_.threads, 1u)) return;
        slot = workers_.insert(slot, std::make_unique<Worker>());
    } else if ((*slot)->thread.joinable()) {
        (*slot)->thread.join();
    }
    Worker& worker = **slot;
    worker.thread = std::thread([this, &worker] { work(worker); });
    worker.ended = false;
}

const CompileService::Words& CompileService::get(const std::string& source) {
    return get(Key{source, Wanted::kKernel});
}

const CompileService::Words& CompileService::get_all(const std::string& source) {
    return get(Key{source, Wanted::kAll});
}

const CompileService::Words& CompileService::get(const Key& key) {
    std::unique_lock lock(mutex_);
    const std::shared_ptr<Job> mine = job(key);
    work_done_.wait(lock, [&] { return mine->done; });
    if (!mine->error.empty()) throw std::runtime_error(mine->error);
    return mine->words;
}

void CompileService::work(Worker& self) {
    pthread_setname_np(pthread_self(), "anymps_slang");
    std::unique_ptr<SlangSession> session;
    std::unique_lock lock(mutex_);
    for (;;) {
        ++idle_;
        const bool woken =
            work_there_.wait_for(lock, options_.patience, [&] { return stopping_ || !queue_.empty(); });
        --idle_;
        if (stopping_) break;
        if (!woken) {
            lock.unlock();
            if (session) {
                session.reset();
                malloc_trim(0);  // else the allocator keeps 100 MB of it
            }
            lock.lock();
            if (queue_.empty()) break;
            continue;  // what came meanwhile found no thread that waits, and no room for another one
        }
        const std::shared_ptr<Job> job = std::move(queue_.front());
        queue_.pop_front();
        lock.unlock();
        run(*job, session);
        lock.lock();
    }
    self.ended = true;
}

void CompileService::run(Job& job, std::unique_ptr<SlangSession>& session) {
    std::unique_lock<std::mutex> first;
    try {
        if (!find_cached(job)) {
            if (!session) session = std::make_unique<SlangSession>(library_, sources_, modules_);
            if (!has_read_) first = std::unique_lock(first_mutex_);
            compile(job, *session);
        }
    } catch (const std::exception& error) {
        job.error = error.what();
    }
    {
        const std::lock_guard lock(mutex_);
        job.done = true;
        work_done_.notify_all();
    }
    if (!session) return;
    session->keep_modules();
    has_read_ = true;
}

bool CompileService::find_cached(Job& job) const {
    if (job.key.second == Wanted::kImports) return false;
    const auto bytes = cache_.find(cache_name(job.key));
    if (bytes) job.words = words_in(*bytes);
    return bytes.has_value();
}

void CompileService::compile(Job& job, SlangSession& session) {
    const auto& [source, wanted] = job.key;
    if (wanted == Wanted::kImports) return session.prepare(source);
    job.words =
        wanted == Wanted::kAll ? pack_entry_points(session.compile_all(source)) : session.compile(source);
    const auto* bytes = reinterpret_cast<const char*>(job.words.data());
    cache_.store(cache_name(job.key), {bytes, job.words.size() * sizeof(uint32_t)});
    const std::lock_guard lock(mutex_);
    ++compilations_;
}

void CompileService::stop() {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    for (const auto& job : queue_) {
        job->error = kStopped;
        job->done = true;
    }
    queue_.clear();
    work_there_.notify_all();
    work_done_.notify_all();
    const std::vector<std::unique_ptr<Worker>> workers = std::move(workers_);
    workers_.clear();
    lock.unlock();
    for (const auto& worker : workers) {
        if (worker->thread.joinable()) worker->thread.join();
    }
}

uint64_t CompileService::compilations() const {
    const std::lock_guard lock(mutex_);
    return compilations_;
}

}  // namespace anymps::compiler
