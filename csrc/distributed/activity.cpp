#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "distributed/device_work.h"
#include "runtime/exit.h"

namespace anymps::distributed {
namespace {

constexpr auto kPatience = std::chrono::seconds(2);  // with collectives that run when the interpreter ends

// Counts what runs, of messages those that nobody waits for, and knows how to end it. Thread-safe.
class Activity {
  public:
    // Leaked: collectives may end while static objects are destroyed.
    static Activity& instance() {
        static auto* activity = new Activity;
        return *activity;
    }

    void add(int count) {
        const std::lock_guard lock(mutex_);
        running_ += count;
        changed_.notify_all();
    }

    void set_abort(const void* owner, std::function<void()> abort) {
        const std::lock_guard lock(mutex_);
        aborts_[owner] = std::move(abort);
    }

    void forget(const void* owner) {
        const std::lock_guard lock(mutex_);
        aborts_.erase(owner);
    }

    // Waits for what runs; then aborts it, and waits once more.
    void finish() noexcept {
        std::unique_lock lock(mutex_);
        const auto idle = [&] { return running_ == 0; };
        if (changed_.wait_for(lock, kPatience, idle)) return;
        for (const auto& [owner, abort] : aborts_) {
            try {
                abort();
            } catch (const std::exception&) {
                // Another group's end is worth the next attempt.
            }
        }
        changed_.wait_for(lock, kPatience, idle);
    }

  private:
    Activity() {
        runtime::before_drain([] { instance().finish(); });
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    int running_ = 0;
    std::map<const void*, std::function<void()>> aborts_;
};

}  // namespace

ActivityMark::ActivityMark() {
    Activity::instance().add(1);
}

ActivityMark::~ActivityMark() {
    Activity::instance().add(-1);
}

AbortAtExit::AbortAtExit(std::function<void()> abort) {
    Activity::instance().set_abort(this, std::move(abort));
}

AbortAtExit::~AbortAtExit() {
    Activity::instance().forget(this);
}

}  // namespace anymps::distributed
