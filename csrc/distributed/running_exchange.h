// An exchange through the host while it runs: the device's copies before and after it, whole or in slices.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "distributed/device_work.h"
#include "distributed/host_argument.h"

namespace anymps::distributed {

// What is alive while an exchange runs. Owners: the jobs that start its slices, and their Works' callbacks.
struct RunningExchange {
    std::optional<ActivityMark> mark;  // the first member: the last to go
    Exchange exchange;
    Caller caller;
    c10::intrusive_ptr<DeviceWork> work;
    std::mutex mutex;
    size_t left = 1;           // slices that have not ended; under mutex
    std::exception_ptr error;  // the first one; under mutex

    // The slices that the exchange is made in, in order: one of the network goes on while the device copies
    // those beside it. The same in all ranks.
    std::vector<Slice> slice();

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
