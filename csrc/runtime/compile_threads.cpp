#include "runtime/compile_threads.h"

#include <c10/core/thread_pool.h>
#include <c10/util/thread_name.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>

#include "vulkan/pipeline.h"

namespace anymps::runtime {
namespace {

constexpr size_t kMaxThreads = 16;

std::atomic<bool> g_started{false};

// As many as there are tasks that have not begun, each of which takes one. Any thread.
class WaitingPipelines {
  public:
    static WaitingPipelines& instance() {
        static auto& waiting = *new WaitingPipelines;
        return waiting;
    }

    void push(const vulkan::Pipeline& pipeline, size_t words) {
        const std::lock_guard lock(mutex_);
        by_words_.emplace(words, &pipeline);
    }

    const vulkan::Pipeline& pop() {
        const std::lock_guard lock(mutex_);
        return *by_words_.extract(by_words_.begin()).mapped();
    }

  private:
    std::mutex mutex_;
    std::multimap<size_t, const vulkan::Pipeline*, std::greater<>>
        by_words_;  // of equals the first comes first
};

// Never destroyed: its threads sleep until the process ends.
c10::ThreadPool& threads() {
    static auto& pool = *new c10::ThreadPool(
        static_cast<int>(std::min(c10::TaskThreadPoolBase::defaultNumThreads(), kMaxThreads)), -1,
        [] { c10::setThreadName("anymps_compile"); });
    g_started.store(true, std::memory_order_release);
    return pool;
}

}  // namespace

void compile_later(const vulkan::Pipeline& pipeline, size_t words) {
    WaitingPipelines::instance().push(pipeline, words);
    threads().run([] { WaitingPipelines::instance().pop().build(); });
}

void finish_compiling() {
    if (g_started.load(std::memory_order_acquire)) threads().waitWorkComplete();
}

}  // namespace anymps::runtime
