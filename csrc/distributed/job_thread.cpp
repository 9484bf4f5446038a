#include "distributed/job_thread.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

namespace anymps::distributed {
namespace {

thread_local const JobThread* of_this_thread = nullptr;

}  // namespace

JobThread::JobThread(const char* name, std::chrono::microseconds spin) : name_(name), spin_(spin) {
    const std::lock_guard lock(mutex_);
    start();
}

void JobThread::start() {
    std::list<Worker> started(1);
    Worker& worker = started.front();
    worker.thread = std::thread([this, &worker] {
        pthread_setname_np(pthread_self(), name_);
        of_this_thread = this;
        run(worker);
    });
    workers_.splice(workers_.end(), started);
}

void JobThread::hand_over() {
    if (of_this_thread != this) return;
    const std::lock_guard lock(mutex_);
    if (workers_.back().thread.get_id() != std::this_thread::get_id()) return;  // it has
    workers_.remove_if([](Worker& worker) {
        if (worker.ended && worker.thread.joinable()) worker.thread.join();
        return worker.ended;
    });
    start();
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
    for (;;) {
        std::thread last;
        {
            const std::lock_guard lock(mutex_);
            const auto left = std::find_if(workers_.rbegin(), workers_.rend(),
                                           [](const Worker& worker) { return worker.thread.joinable(); });
            if (left == workers_.rend()) return;
            last = std::move(left->thread);
        }
        last.join();
    }
}

void JobThread::run(Worker& self) {
    for (;;) {
        std::function<void()> job;
        const auto end = std::chrono::steady_clock::now() + spin_;
        while (!waiting_.load(std::memory_order_acquire) && !stopped_ &&
               std::chrono::steady_clock::now() < end) {
        }
        {
            std::unique_lock lock(mutex_);
            const auto replaced = [&] { return &workers_.back() != &self; };
            changed_.wait(lock, [&] { return replaced() || stopped_ || !jobs_.empty(); });
            if (replaced() || jobs_.empty()) {
                self.ended = true;
                return;
            }
            job = std::move(jobs_.front());
            jobs_.pop_front();
            waiting_.store(!jobs_.empty(), std::memory_order_relaxed);
        }
        job();
    }
}

}  // namespace anymps::distributed
