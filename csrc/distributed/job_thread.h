// A thread that does what it is given, one job after the other.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

namespace anymps::distributed {

// Thread-safe. Jobs must not throw.
class JobThread {
  public:
    // name: the thread's, of at most 15 characters. spin: how long it looks for the next job before it
    // sleeps, from which it wakes some 50 us late.
    explicit JobThread(const char* name, std::chrono::microseconds spin = {});
    ~JobThread() { finish(); }

    // False once it was stopped: the job is not done.
    bool push(std::function<void()> job);
    // What a job calls before it waits for a later job: another thread does those. Nothing outside of jobs.
    void hand_over();
    // Takes no more jobs. Those that it has are still done.
    void stop();
    bool stopped() const { return stopped_; }
    // Whether another job waits for the thread: for one that goes on until then.
    bool waiting() const { return waiting_.load(std::memory_order_acquire); }
    // Stops, and waits for the thread to end. For one thread at a time, and not the thread itself.
    void finish();

  private:
    struct Worker {
        std::thread thread;
        bool ended = false;  // it needs this object no more
    };

    void start();  // a worker that does the jobs from now on; under mutex_
    void run(Worker& self);

    const char* const name_;
    const std::chrono::microseconds spin_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> jobs_;
    std::atomic<bool> stopped_{false};
    std::atomic<bool> waiting_{false};  // there is a job, or there was
    std::list<Worker> workers_;         // the last one does the jobs, others what they had begun before
};

}  // namespace anymps::distributed
