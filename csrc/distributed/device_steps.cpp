#include <algorithm>
#include <bit>

#include "anymps/shaders/exchange.h"
#include "distributed/step_executor.h"
#include "kernels/flat_grid.h"
#include "kernels/kernel_library.h"
#include "runtime/device.h"
#include "runtime/side_stream.h"
#include "vulkan/buffer.h"
#include "vulkan/check.h"

namespace anymps::distributed {
namespace {

namespace shader = shaders::exchange;
using Op = c10d::ReduceOp;

// Groups of a grid: what keeps a bus of 64 GB/s busy in one direction, and a small part of a GPU.
constexpr uint64_t kGroups = 96;
constexpr uint64_t kGroupsOfSoftware = 8;
constexpr uint32_t kWord = 16;

uint32_t operation(Op::RedOpType op) {
    switch (op) {
        case Op::PRODUCT:
            return shader::kProduct;
        case Op::MIN:
            return shader::kMinimum;
        case Op::MAX:
            return shader::kMaximum;
        case Op::BAND:
            return shader::kBitwiseAnd;
        case Op::BOR:
            return shader::kBitwiseOr;
        case Op::BXOR:
            return shader::kBitwiseXor;
        default:
            return shader::kSum;
    }
}

// The largest power of two up to a word that all these are multiples of.
uint32_t common_unit(std::initializer_list<uint64_t> addresses) {
    uint64_t bits = kWord;
    for (const uint64_t address : addresses) bits |= address;
    return 1u << std::countr_zero(bits);
}

const shader::ReduceKernel& kernel_of(c10::ScalarType dtype) {
    switch (kernels::compute_of(dtype)) {
        case kernels::Compute::I32:
            return shader::exchange_reduce_i32;
        case kernels::Compute::I64:
            return shader::exchange_reduce_i64;
        default:
            return shader::exchange_reduce_f32;
    }
}

class DeviceSteps final : public StepExecutor {
  public:
    DeviceSteps(const SharedMemory& memory, int rank, int ranks)
        : rank_(rank),
          ranks_(ranks),
          buffer_(runtime::device(), memory.segment(0), memory.bytes()),
          stream_(runtime::device()) {}

    bool on_device() const override { return true; }
    uint64_t segment(int rank) const override {
        return buffer_.address() + static_cast<uint64_t>(rank) * SharedSegment::kBytes;
    }
    uint64_t address(const HostArgument& argument) const override { return argument.device_address(); }

    void copy(uint64_t to, uint64_t from, size_t bytes) override {
        const uint32_t unit = common_unit({to, from});
        const uint64_t units = bytes / unit;
        const Threads threads(std::max<uint64_t>(units, 1));
        launch(shader::exchange_copy, {.workgroup = threads.workgroup, .unit_bytes = unit},
               shader::CopyArgs{.dst = to,
                                .src = from,
                                .units = units,
                                .tail = static_cast<uint32_t>(bytes % unit),
                                .threads = threads.count()},
               threads);
    }

    void reduce(const Reduced& reduced) override {
        const size_t size = c10::elementSize(reduced.dtype);
        const uint64_t count = reduced.bytes / size;
        const auto words = std::min<uint64_t>(kWord, 4 * size);
        const bool aligned = common_unit({reduced.out, reduced.also, reduced.own, reduced.parts}) >= words;
        const uint32_t vector = aligned && !kernels::launch_config().software ? 4 : 1;
        const uint64_t whole = count / vector * vector;
        reduce_range(reduced, 0, whole, vector);
        reduce_range(reduced, whole, count - whole, 1);
    }

    uint64_t submit(uint64_t after, const vulkan::TimelineSemaphore* signal, uint64_t value) override {
        return stream_.submit(after, signal, value);
    }
    bool completed(uint64_t step) const override { return stream_.completed(step); }
    void wait(uint64_t step) const override { stream_.wait(step); }

  private:
    // Of a grid for `items`, each of which one thread does.
    struct Threads {
        explicit Threads(uint64_t items) : workgroup(kernels::flat_workgroup()) {
            const uint64_t most = kernels::launch_config().software ? kGroupsOfSoftware : kGroups;
            groups = static_cast<uint32_t>(std::min(most, (items + workgroup - 1) / workgroup));
        }
        uint32_t count() const { return workgroup * groups; }
        uint32_t workgroup, groups;
    };

    template <class Kernel, class Args>
    void launch(const Kernel& kernel, const shader::Constants& constants, const Args& args,
                const Threads& threads) {
        const auto values = constants.values();
        stream_.dispatch(kernels::pipeline(kernels::kernel_id(kernel.name), values), &args, sizeof(args),
                         {threads.groups, 1, 1});
    }

    void reduce_range(const Reduced& reduced, uint64_t first, uint64_t count, uint32_t vector) {
        if (count == 0) return;
        const uint64_t offset = first * c10::elementSize(reduced.dtype);
        const Threads threads(count / vector);
        launch(kernel_of(reduced.dtype),
               {.workgroup = threads.workgroup,
                .type = kernels::code(reduced.dtype),
                .operation = operation(reduced.op),
                .average = reduced.op == Op::AVG,
                .vector = vector},
               shader::ReduceArgs{.out = reduced.out + offset,
                                  .also = reduced.also != 0 ? reduced.also + offset : 0,
                                  .own = reduced.own + offset,
                                  .parts = reduced.parts + offset,
                                  .stride = SharedSegment::kBytes,
                                  .count = count,
                                  .ranks = static_cast<uint32_t>(ranks_),
                                  .rank = static_cast<uint32_t>(rank_),
                                  .threads = threads.count()},
               threads);
    }

    int rank_, ranks_;
    vulkan::Buffer buffer_;
    runtime::SideStream stream_;
};

}  // namespace

std::unique_ptr<StepExecutor> device_steps(const SharedMemory& memory, int rank, int ranks) {
    if (!runtime::device().info().external_memory_host) return nullptr;
    try {
        return std::make_unique<DeviceSteps>(memory, rank, ranks);
    } catch (const vulkan::Error&) {
        return nullptr;  // some drivers take anonymous memory only
    }
}

}  // namespace anymps::distributed
