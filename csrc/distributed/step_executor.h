// Who moves and reduces the data of a collective's steps: the device, or threads of the CPU.
#pragma once

#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "distributed/host_argument.h"
#include "distributed/shared_segment.h"
#include "runtime/command_encoder.h"

namespace anymps::vulkan {
class TimelineSemaphore;
}

namespace anymps::distributed {

// An elementwise reduction over the ranks, in their order. op: SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR or BXOR
// as it is for the dtype (Reduction::local_op). Sums of 16-bit floats are made in float32.
struct Reduced {
    c10::ScalarType dtype = c10::ScalarType::Float;
    c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM;
    uint64_t out = 0;
    uint64_t also = 0;   // where the result goes as well, or 0
    uint64_t own = 0;    // this rank's elements
    uint64_t parts = 0;  // those of rank 0 in the shared memory; of the others one segment further each
    size_t bytes = 0;    // of a rank
};

// Addresses are the executor's own: of the device, or of the host. What copy() and reduce() ask for from one
// submit() to the next is one step, whose parts may be done in any order. Owner: a group's thread.
class StepExecutor {
  public:
    virtual ~StepExecutor() = default;

    virtual bool on_device() const = 0;
    virtual uint64_t segment(int rank) const = 0;
    virtual uint64_t address(const HostArgument& argument) const = 0;

    virtual void copy(uint64_t to, uint64_t from, size_t bytes) = 0;
    virtual void reduce(const Reduced& reduced) = 0;

    // Begins the step, of a collective that starts behind the encoder's serial `after`. Of the last one: its
    // end raises the semaphore to the value. Returns the step's number.
    virtual uint64_t submit(uint64_t after, const vulkan::TimelineSemaphore* signal, uint64_t value) = 0;
    virtual bool completed(uint64_t step) const = 0;
    virtual void wait(uint64_t step) const = 0;
};

// The one for the device where it takes the shared memory and is none of software, else the one for the CPU;
// ANYMPS_SHARED_MEMORY=device and =host ask for one. The memory has to outlive it. Initialises the device.
std::unique_ptr<StepExecutor> step_executor(const SharedMemory& memory, int rank, int ranks);

// Of device_steps.cpp: nullptr where the device does not take the memory.
std::unique_ptr<StepExecutor> device_steps(const SharedMemory& memory, int rank, int ranks);
// Of host_steps.cpp.
std::unique_ptr<StepExecutor> host_steps(const SharedMemory& memory, int rank, int ranks);

}  // namespace anymps::distributed
