#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "distributed/reduction.h"
#include "distributed/step_executor.h"
#include "runtime/device.h"
#include "runtime/plan_log.h"

namespace anymps::distributed {
namespace {

constexpr size_t kBytesOfThread = 1ull << 20;  // for which a thread more is worth its start
constexpr size_t kMaxThreads = 4;

std::byte* pointer(uint64_t address) {
    return reinterpret_cast<std::byte*>(address);
}

// A step is done when it is asked for.
class HostSteps final : public StepExecutor {
  public:
    HostSteps(const SharedMemory& memory, int rank, int ranks)
        : memory_(memory), rank_(rank), ranks_(ranks) {}

    bool on_device() const override { return false; }
    uint64_t segment(int rank) const override { return reinterpret_cast<uint64_t>(memory_.segment(rank)); }
    uint64_t address(const HostArgument& argument) const override {
        return reinterpret_cast<uint64_t>(argument.host().const_data_ptr());
    }

    void copy(uint64_t to, uint64_t from, size_t bytes) override {
        in_threads(bytes, 1, [&](size_t first, size_t count) {
            std::memcpy(pointer(to) + first, pointer(from) + first, count);
        });
    }

    void reduce(const Reduced& reduced) override {
        const size_t size = c10::elementSize(reduced.dtype);
        in_threads(reduced.bytes / size, size, [&](size_t first, size_t count) {
            const auto part = [&](uint64_t address) {
                return at::from_blob(pointer(address) + first * size, {static_cast<int64_t>(count)},
                                     at::TensorOptions(reduced.dtype));
            };
            Tensors parts;
            for (int rank = 0; rank < ranks_; ++rank) {
                parts.push_back(part(rank == rank_ ? reduced.own : segment(rank) + reduced.parts));
            }
            const Tensor result = reduced_on_host(parts, reduced.op);
            part(reduced.out).copy_(result);
            if (reduced.also != 0) part(reduced.also).copy_(result);
        });
    }

    Step submit(uint64_t) override { return {}; }
    bool completed(const Step&) const override { return true; }
    void wait(const Step&) const override {}

  private:
    // Runs work(first, count) over parts of [0, count) in several threads; `unit` bytes each.
    template <class Work>
    void in_threads(size_t count, size_t unit, Work work) const {
        const size_t cores = std::max<size_t>(1, std::thread::hardware_concurrency() / ranks_);
        const size_t threads =
            std::clamp<size_t>(count * unit / kBytesOfThread, 1, std::min(kMaxThreads, cores));
        std::vector<std::thread> others;
        const auto first = [&](size_t i) { return count * i / threads; };
        for (size_t i = 1; i < threads; ++i) {
            others.emplace_back([&, i] { work(first(i), first(i + 1) - first(i)); });
        }
        work(0, first(1));
        for (auto& thread : others) thread.join();
    }

    const SharedMemory& memory_;
    int rank_, ranks_;
};

}  // namespace

std::unique_ptr<StepExecutor> host_steps(const SharedMemory& memory, int rank, int ranks) {
    return std::make_unique<HostSteps>(memory, rank, ranks);
}

std::unique_ptr<StepExecutor> step_executor(const SharedMemory& memory, Agreement& agreement) {
    const int rank = agreement.rank(), ranks = static_cast<int>(agreement.segments().size());
    const auto log = [&](const char* way) {
        if (!runtime::logs_plans()) return;
        runtime::log_plan("collectives",
                          "rank " + std::to_string(rank) + " of " + std::to_string(ranks) + way);
    };
    const char* text = std::getenv("ANYMPS_SHARED_MEMORY");
    const std::string_view wanted = text ? text : "";
    const bool exported = wanted == "export";
    // A driver that runs on the CPU would only be in the way.
    const bool on_device = !staging_wanted() && (exported || wanted == "device" ||
                                                 (wanted != "host" && !runtime::device().info().runs_on_cpu));
    auto steps = on_device && !exported ? device_steps(memory, rank, ranks) : nullptr;
    if (on_device && !steps) {
        if (auto found = exported_steps(agreement)) {
            log(": by the device, in memory that the devices export to each other");
            return found;
        }
    }
    agreement.leave();
    log(steps ? ": by the device, in memory of the processes" : ": by the CPU, in memory of the processes");
    return steps ? std::move(steps) : host_steps(memory, rank, ranks);
}

}  // namespace anymps::distributed
