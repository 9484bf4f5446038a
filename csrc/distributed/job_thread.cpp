#include "distributed/job_thread.h"

#include <pthread.h>

#include <utility>

namespace anymps::distributed {

JobThread::JobThread(const char* name) {
    thread_ = std::thread([this, name] {
        pthread_setname_np(pthread_self(), name);
        run();
    });
}

bool JobThread::push(std::function<void()> job) {
    {
        const std::lock_guard lock(mutex_);
        if (stopped_) return false;
        jobs_.push_back(std::move(job));
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

void JobThread::run() {
    for (;;) {
        std::function<void()> job;
        {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [&] { return stopped_ || !jobs_.empty(); });
            if (jobs_.empty()) return;
            job = std::move(jobs_.front());
            jobs_.pop_front();
        }
        job();
    }
}

}  // namespace anymps::distributed
