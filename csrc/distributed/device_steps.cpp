#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <utility>
#include <vector>

#include "anymps/shaders/exchange.h"
#include "distributed/exported_segments.h"
#include "distributed/segment_buffers.h"
#include "distributed/step_executor.h"
#include "kernels/flat_grid.h"
#include "kernels/kernel_library.h"
#include "runtime/address_map.h"
#include "runtime/device.h"
#include "runtime/side_stream.h"
#include "vulkan/buffer.h"
#include "vulkan/check.h"

namespace anymps::distributed {
namespace {

namespace shader = shaders::exchange;
using Op = c10d::ReduceOp;

// Groups of a grid: what keeps a bus of 64 GB/s busy in one direction. More only take occupancy from the
// kernels of the model: with 96 a step of BERT by two H200 took 42 to 44 ms, with 32 it takes 40.
constexpr uint64_t kGroups = 32;
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

// The kernels of steps, for a grid that leaves room for others.
class ExchangeKernels : public StepExecutor {
  public:
    ExchangeKernels(const SegmentBuffers& segments, int rank) : segments_(segments), rank_(rank) {}

    bool on_device() const override { return true; }
    uint64_t segment(int rank) const override { return segments_.address(rank); }
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
               threads, std::array<Access, 2>{{{to, bytes, true}, {from, bytes, false}}});
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

  protected:
    using Access = runtime::Access;

    virtual void dispatch(const vulkan::Pipeline& pipeline, std::span<const std::byte> push,
                          runtime::Grid grid, std::span<const Access> accesses) = 0;

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
                const Threads& threads, std::span<const Access> accesses) {
        const auto values = constants.values();
        dispatch(kernels::pipeline(kernels::kernel_id(kernel.name), values),
                 std::as_bytes(std::span(&args, 1)), {threads.groups, 1, 1}, accesses);
    }

    void reduce_range(const Reduced& reduced, uint64_t first, uint64_t count, uint32_t vector) {
        if (count == 0) return;
        const uint64_t size = c10::elementSize(reduced.dtype), offset = first * size, bytes = count * size;
        const Threads threads(count / vector);
        std::vector<Access> accesses{{reduced.out + offset, bytes, true},
                                     {reduced.own + offset, bytes, false}};
        if (reduced.also != 0) accesses.push_back({reduced.also + offset, bytes, true});
        launch(kernel_of(reduced.dtype),
               {.workgroup = threads.workgroup,
                .type = kernels::code(reduced.dtype),
                .operation = operation(reduced.op),
                .average = reduced.op == Op::AVG,
                .vector = vector},
               shader::ReduceArgs{.out = reduced.out + offset,
                                  .also = reduced.also != 0 ? reduced.also + offset : 0,
                                  .own = reduced.own + offset,
                                  .segments = segments_.table(),
                                  .parts = reduced.parts + offset,
                                  .count = count,
                                  .ranks = static_cast<uint32_t>(segments_.ranks()),
                                  .rank = static_cast<uint32_t>(rank_),
                                  .threads = threads.count()},
               threads, accesses);
    }

    const SegmentBuffers& segments_;
    int rank_;
};

// Steps among the caller's own commands. What peers have written needs no barrier: the stream waits for them
// between its submissions.
class StreamSteps final : public ExchangeKernels {
  public:
    using ExchangeKernels::ExchangeKernels;

    Step submit(uint64_t) override { return {runtime::encoder().submit()}; }
    bool completed(const Step& step) const override { return runtime::encoder().completed(step[0]); }
    void wait(const Step& step) const override { runtime::encoder().wait(step[0]); }

  protected:
    void dispatch(const vulkan::Pipeline& pipeline, std::span<const std::byte> push, runtime::Grid grid,
                  std::span<const Access> accesses) override {
        runtime::encoder().dispatch(pipeline, push.data(), push.size(), grid, accesses);
    }
};

// Steps beside the stream. Copies to the shared memory and from it take the device's engines for copies where
// it has them, which leave its compute units to the stream.
class DeviceSteps final : public ExchangeKernels {
  public:
    DeviceSteps(std::unique_ptr<const SegmentBuffers> segments, int rank)
        : ExchangeKernels(*segments, rank),
          segments_(std::move(segments)),
          engines_(runtime::device().has_copy_queues()),
          in_stream_(*segments_, rank) {}

    void copy(uint64_t to, uint64_t from, size_t bytes) override {
        const auto out = segments_->find(to), in = segments_->find(from);
        if (!engines_ || out.has_value() == in.has_value()) return ExchangeKernels::copy(to, from, bytes);
        streams_[out ? kOut : kIn].copy(out ? *out : runtime::find_buffer(to, bytes),
                                        in ? *in : runtime::find_buffer(from, bytes), bytes);
    }

    Step submit(uint64_t after) override {
        Step step;
        for (size_t i = 0; i < step.size(); ++i) step[i] = streams_[i].submit(after);
        return step;
    }
    bool completed(const Step& step) const override {
        for (size_t i = 0; i < step.size(); ++i) {
            if (step[i] != 0 && !streams_[i].completed(step[i])) return false;
        }
        return true;
    }
    void wait(const Step& step) const override {
        for (size_t i = 0; i < step.size(); ++i) {
            if (step[i] != 0) streams_[i].wait(step[i]);
        }
    }
    StepExecutor* in_stream() override { return runtime::device().has_side_queue() ? &in_stream_ : nullptr; }

  protected:
    void dispatch(const vulkan::Pipeline& pipeline, std::span<const std::byte> push, runtime::Grid grid,
                  std::span<const Access>) override {
        streams_[kSide].dispatch(pipeline, push.data(), push.size(), grid);
    }

  private:
    static constexpr size_t kSide = 0, kOut = 1, kIn = 2;

    std::unique_ptr<const SegmentBuffers> segments_;
    const bool engines_;
    StreamSteps in_stream_;
    runtime::SideStream streams_[3] = {{runtime::device(), vulkan::Lane::Side},
                                       {runtime::device(), vulkan::Lane::CopyOut},
                                       {runtime::device(), vulkan::Lane::CopyIn}};
};

}  // namespace

std::unique_ptr<StepExecutor> device_steps(const SharedMemory& memory, int rank, int ranks) {
    if (!runtime::device().info().external_memory_host) return nullptr;
    try {
        auto shared =
            std::make_unique<const vulkan::Buffer>(runtime::device(), memory.segment(0), memory.bytes());
        auto segments = std::make_unique<const SegmentBuffers>(runtime::device(), std::move(shared), ranks);
        return std::make_unique<DeviceSteps>(std::move(segments), rank);
    } catch (const vulkan::Error&) {
        return nullptr;  // some drivers take anonymous memory only
    }
}

std::unique_ptr<StepExecutor> exported_steps(Agreement& agreement) {
    auto segments = exchange_segments(agreement);
    if (!segments) return nullptr;
    auto steps = std::make_unique<DeviceSteps>(std::move(segments), agreement.rank());
    return verify_segments(*steps, agreement) ? std::move(steps) : nullptr;
}

}  // namespace anymps::distributed
