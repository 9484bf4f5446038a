#include "distributed/job_thread.h"

#include <pthread.h>

#include <utility>

namespace anymps::distributed {

JobThread::JobThread(const char* name, std::chrono::microseconds spin) {
    thread_ = std::thread([this, name, spin] {
        pthread_setname_np(pthread_self(), name);
        run(spin);
    });
}

bool JobThread::push(std::function<void()> job) {
    {
        const std::lock_guard lock(mutex_);
        if (stopped_) return false;
        jobs_.push_back(std::move(job));
        waiting_.store(true, std::memory_order_release);
    }
    changed_.notify_one();
    return true;
}

void JobThread::stop() {
    {
        const std::lock_guard lock(mutex_);
        stopped_ = true;
    }
    changed_.notify_all();
}

void JobThread::finish() {
    stop();
    if (thread_.joinable()) thread_.join();
}

void JobThread::run(std::chrono::microseconds spin) {
    for (;;) {
        std::function<void()> job;
        const auto end = std::chrono::steady_clock::now() + spin;
        while (!waiting_.load(std::memory_order_acquire) && !stopped_ &&
               std::chrono::steady_clock::now() < end) {
        }
        {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [&] { return stopped_ || !jobs_.empty(); });
            if (jobs_.empty()) return;
            job = std::move(jobs_.front());
            jobs_.pop_front();
            waiting_.store(!jobs_.empty(), std::memory_order_relaxed);
        }
        job();
    }
}

}  // namespace anymps::distributed
