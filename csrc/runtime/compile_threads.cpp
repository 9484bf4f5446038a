#include "runtime/compile_threads.h"

#include <c10/core/thread_pool.h>
#include <c10/util/thread_name.h>

#include <algorithm>
#include <atomic>

#include "vulkan/pipeline.h"

namespace anymps::runtime {
namespace {

constexpr size_t kMaxThreads = 16;

std::atomic<bool> g_started{false};

// Never destroyed: its threads sleep until the process ends.
c10::ThreadPool& threads() {
    static auto& pool = *new c10::ThreadPool(
        static_cast<int>(std::min(c10::TaskThreadPoolBase::defaultNumThreads(), kMaxThreads)), -1,
        [] { c10::setThreadName("anymps_compile"); });
    g_started.store(true, std::memory_order_release);
    return pool;
}

}  // namespace

void compile_later(const vulkan::Pipeline& pipeline) {
    threads().run([&pipeline] { pipeline.build(); });
}

void finish_compiling() {
    if (g_started.load(std::memory_order_acquire)) threads().waitWorkComplete();
}

}  // namespace anymps::runtime
