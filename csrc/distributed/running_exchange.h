// An exchange through the host while it runs: the device's copies before and after it, whole or in slices.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "distributed/device_work.h"
#include "distributed/host_argument.h"

namespace anymps::distributed {

// Things that end in any order. Thread-safe but for `error`, which is final once end() has returned true.
struct Countdown {
    std::mutex mutex;
    size_t left = 1;
    std::exception_ptr error;  // the first one

    // of_this: its error, if any. True for the last one.
    bool end(std::exception_ptr of_this) {
        const std::lock_guard lock(mutex);
        if (of_this && !error) error = std::move(of_this);
        return --left == 0;
    }
};

// What is alive while an exchange runs. Owners: the jobs that start its slices, and their Works' callbacks.
struct RunningExchange {
    std::optional<ActivityMark> mark;  // the first member: the last to go
    Exchange exchange;
    Caller caller;
    c10::intrusive_ptr<DeviceWork> work;
    Countdown slices;

    // Before they start: the slices that the exchange is made in, in order: one of the network goes on while
    // the device copies those beside it. The same in all ranks.
    std::vector<Slice> cut();

    // Starts a slice. error: of what was to complete before.
    std::vector<WorkPtr> start(Slice slice, std::exception_ptr error);
    // Records what brings a slice to the device.
    void to_device(Slice slice);
    // Behind to_device() of all slices: records what the device does with the arguments, and ends the Work.
    void finish();
    void end();
};

// The same with what follows it, until the Work has ended.
void start(const std::shared_ptr<RunningExchange>& running, Slice slice, std::exception_ptr error);

}  // namespace anymps::distributed
