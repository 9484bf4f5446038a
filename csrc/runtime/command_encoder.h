// The only writer of command buffers: records dispatches and copies in order, derives barriers from the
// addresses read and written, submits in batches.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "runtime/grid.h"
#include "runtime/hazards.h"

namespace anymps::vulkan {
class Pipeline;
class Device;
class QueryPool;
}  // namespace anymps::vulkan

namespace anymps::runtime {

struct PhiloxBase;
struct Recording;

// {address, code} that a kernel hands to report_error(); see CommandEncoder::error_slot.
struct ErrorSlot {
    uint64_t address;
    uint32_t code;
};

// One in-order stream of commands of the device. Owner: runtime::Stream. Every method may be called from any
// thread; a call is recorded whole before the next one. Commands of a thread that captures a graph are
// recorded there instead, and what would submit or wait raises RuntimeError (runtime/command_graph.h).
class CommandEncoder {
  public:
    explicit CommandEncoder(const vulkan::Device& device);
    ~CommandEncoder();

    // Records one dispatch. push: at most 128 bytes.
    void dispatch(const vulkan::Pipeline& pipeline, const void* push, size_t push_bytes, Grid grid,
                  std::span<const Access> accesses);

    // The same for arguments of any size: they are copied into the argument ring and the kernel is pushed
    // their device address.
    void dispatch_pointer(const vulkan::Pipeline& pipeline, const void* args, size_t bytes, Grid grid,
                          std::span<const Access> accesses);

    // The same with workgroup counts that an earlier command writes: three words at this device address.
    void dispatch_pointer(const vulkan::Pipeline& pipeline, const void* args, size_t bytes, uint64_t grid,
                          std::span<const Access> accesses);

    // Device-to-device copy of bytes; the ranges must not overlap.
    void copy(uint64_t dst, uint64_t src, uint64_t bytes);

    // Host-to-device: the source may be freed or changed as soon as this returns.
    void upload(uint64_t dst, const void* src, uint64_t bytes);

    // Device-to-host: waits for everything before it, then the bytes are in dst.
    void download(void* dst, uint64_t src, uint64_t bytes);

    // Writes a byte pattern of 4 equal bytes over a range of any alignment.
    void fill(uint64_t dst, uint8_t byte, uint64_t bytes);

    // A timestamp when everything before it has completed.
    void write_timestamp(const vulkan::QueryPool& pool, uint32_t index);

    // Sends what is recorded to the queue; returns the serial number by which all of it will have completed.
    uint64_t submit();

    // Submits a graph after what is recorded; its random numbers begin where `bases` say. Returns its serial.
    uint64_t replay(const Recording& graph, std::span<const PhiloxBase> bases);
    // Orders a graph's commands behind and before those of other submissions: its first and last command.
    void graph_barrier(Recording& graph);

    // How many calls have recorded or submitted something: while it stays, no memory of the device was
    // written.
    uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }

    // Blocks until a serial has completed. Does not raise device asserts.
    void wait(uint64_t submission);
    bool completed(uint64_t submission) const;

    // submit + wait for everything, then check_errors().
    void synchronize();

    // Raises a device assert that completed work has reported as torch.AcceleratorError.
    void check_errors();

    // Where kernels report an out-of-range index of `op` (a string literal, e.g. "index_select").
    ErrorSlot error_slot(const char* op);

    // The same for an error that has words of its own.
    ErrorSlot message_slot(const std::string& message);

  private:
    class Call;
    class Impl;
    std::unique_ptr<Impl> impl_;
    std::atomic<uint64_t> calls_{0};
};

// The encoder of the current device's stream. Initialises the device at the first use; raises RuntimeError
// when there is none, or in a forked child.
CommandEncoder& encoder();

}  // namespace anymps::runtime
