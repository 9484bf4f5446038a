// Who moves and reduces the data of a collective's steps: the device, or threads of the CPU.
#pragma once

#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "distributed/agreement.h"
#include "distributed/host_argument.h"
#include "distributed/shared_segment.h"
#include "runtime/command_encoder.h"

namespace anymps::distributed {

// An elementwise reduction over the ranks, in their order. op: SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR or BXOR
// as it is for the dtype (Reduction::local_op). Sums of 16-bit floats are made in float32.
struct Reduced {
    c10::ScalarType dtype = c10::ScalarType::Float;
    c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM;
    uint64_t out = 0;
    uint64_t also = 0;   // where the result goes as well, or 0
    uint64_t own = 0;    // this rank's elements
    uint64_t parts = 0;  // where those of the others are in their segments
    size_t bytes = 0;    // of a rank
};

// What a step waits for: serials of an executor's streams, 0 for none.
using Step = std::array<uint64_t, 3>;

// Addresses are the executor's own: of the device, or of the host. What copy() and reduce() ask for from one
// submit() to the next is one step, whose parts may be done in any order. Owner: one thread.
class StepExecutor {
  public:
    virtual ~StepExecutor() = default;

    virtual bool on_device() const = 0;
    virtual uint64_t segment(int rank) const = 0;
    virtual uint64_t address(const HostArgument& argument) const = 0;

    virtual void copy(uint64_t to, uint64_t from, size_t bytes) = 0;
    virtual void reduce(const Reduced& reduced) = 0;

    // Begins the step, of a collective that starts behind the encoder's serial `after`, which has completed.
    virtual Step submit(uint64_t after) = 0;
    virtual bool completed(const Step& step) const = 0;
    virtual void wait(const Step& step) const = 0;

    // The same steps recorded in the encoder's stream, where the caller's commands are; for one thread at a
    // time, whichever. nullptr where the executor does not work on the device, or the stream's queue cannot
    // wait while steps run beside it.
    virtual StepExecutor* in_stream() { return nullptr; }
};

// The one for the device where it takes the shared memory, or all devices take each other's, and it is none
// of software, else the one for the CPU; ANYMPS_SHARED_MEMORY=device, =export and =host ask for one. The
// memory has to outlive it. Initialises the device. Throws as the agreement does, which ends here.
std::unique_ptr<StepExecutor> step_executor(const SharedMemory& memory, Agreement& agreement);

// Of device_steps.cpp: nullptr where the device does not take the memory.
std::unique_ptr<StepExecutor> device_steps(const SharedMemory& memory, int rank, int ranks);
// The same in memory of the devices: see exported_segments.h.
std::unique_ptr<StepExecutor> exported_steps(Agreement& agreement);
// Of host_steps.cpp.
std::unique_ptr<StepExecutor> host_steps(const SharedMemory& memory, int rank, int ranks);

}  // namespace anymps::distributed
