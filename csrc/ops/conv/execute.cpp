#include "ops/conv/execute.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include <mutex>
#include <optional>
#include <unordered_map>

#include "gemm/fragment_layout.h"
#include "gemm/tuning.h"
#include "kernels/check_dtype.h"
#include "kernels/kernel_call.h"
#include "ops/amax.h"
#include "ops/conv/algorithms.h"
#include "runtime/device.h"
#include "runtime/dispatch_time.h"
#include "runtime/kernel_profile.h"
#include "runtime/plan_log.h"

namespace anymps::ops {
namespace {

using at::Tensor;

// The plans of this process. All are forgotten when there are many, so that changing sizes do not fill
// memory, and when tiles have been tuned.
class PlanCache {
  public:
    std::shared_ptr<const ConvPlan> find(const ConvProblem& problem, uint32_t generation) {
        const std::lock_guard lock(mutex_);
        if (generation != generation_) {
            plans_.clear();
            generation_ = generation;
        }
        const auto found = plans_.find(problem);
        return found == plans_.end() ? nullptr : found->second;
    }
    void insert(const ConvProblem& problem, std::shared_ptr<const ConvPlan> plan, uint32_t generation) {
        constexpr size_t kMaxPlans = 1024;
        const std::lock_guard lock(mutex_);
        if (generation != generation_) return;
        if (plans_.size() >= kMaxPlans) plans_.clear();
        plans_.emplace(problem, std::move(plan));
    }

  private:
    struct Hash {
        size_t operator()(const ConvProblem& problem) const { return problem.hash(); }
    };
    std::mutex mutex_;
    std::unordered_map<ConvProblem, std::shared_ptr<const ConvPlan>, Hash> plans_;
    uint32_t generation_ = 0;
};

// The tensors of one execution, and where they lie.
class Buffers {
  public:
    Buffers(const ConvPlan& plan, const GivenTensors& given)
        : plan_(plan), given_(given), temporaries_(plan.temporaries.size()) {
        if (plan.amax_count > 0) amaxes_.emplace(plan.amax_count);
    }

    const Tensor& tensor(int32_t buffer) {
        if (buffer < kGiven) return given_[buffer];
        Tensor& tensor = temporaries_[buffer - kGiven];
        if (!tensor.defined()) {
            const ConvPlan::Temporary& temporary = plan_.temporaries[buffer - kGiven];
            tensor = at::empty(temporary.sizes,
                               given_[kW].options().dtype(kernels::scalar_type_of(temporary.type)));
        }
        return tensor;
    }
    uint64_t address(int32_t buffer) {
        return buffer == kAmaxStates ? amaxes_->address() : kernels::address(tensor(buffer));
    }
    // No bytes where a tensor has none.
    runtime::Access range(const Pass::Access& access) {
        if (access.buffer == kAmaxStates)
            return {amaxes_->address() + access.offset, access.bytes, access.write};
        const auto& storage = tensor(access.buffer).storage();
        return {reinterpret_cast<uint64_t>(storage.data()), storage.nbytes(), access.write};
    }
    const AmaxStates& amaxes() const { return *amaxes_; }
    void release(const Pass& pass) {
        for (const int32_t buffer : pass.last_of) temporaries_[buffer - kGiven].reset();
    }

  private:
    const ConvPlan& plan_;
    const GivenTensors& given_;
    c10::SmallVector<Tensor, 8> temporaries_;
    std::optional<AmaxStates> amaxes_;
};

void dispatch(const Pass& pass, Buffers& buffers) {
    static thread_local std::vector<std::byte> args;
    args.assign(pass.args.begin(), pass.args.end());
    for (const auto& [at, buffer] : pass.addresses) {
        uint64_t value;
        std::memcpy(&value, args.data() + at, sizeof(value));
        value += buffers.address(buffer);
        std::memcpy(args.data() + at, &value, sizeof(value));
    }
    c10::SmallVector<runtime::Access, 8> accesses;
    for (const Pass::Access& access : pass.accesses)
        if (const auto range = buffers.range(access); range.bytes > 0) accesses.push_back(range);
    // The grid of a rarely taken fallback is chosen on the device where it is large, so that idle workgroups
    // are not even started; a small one takes as long as to ask.
    constexpr uint64_t kMany = 512;
    std::optional<runtime::ZeroedWords> grid;
    if (pass.when == When::Fallback && uint64_t{pass.grid.x} * pass.grid.y > kMany) {
        grid = conditional_grid({&buffers.amaxes(), false}, pass.grid);
        accesses.push_back({grid->address(), 3 * sizeof(uint32_t), false});
    }
    if (!pass.label.empty() && runtime::profiling()) runtime::profile_work(pass.operations, pass.label);
    runtime::note_dispatch({.operations = grid ? 0 : pass.operations});
    auto& encoder = runtime::encoder();
    if (grid)
        encoder.dispatch_pointer(*pass.pipeline, args.data(), args.size(), grid->address(), accesses);
    else if (pass.by_pointer)
        encoder.dispatch_pointer(*pass.pipeline, args.data(), args.size(), pass.grid, accesses);
    else
        encoder.dispatch(*pass.pipeline, args.data(), args.size(), pass.grid, accesses);
}

// The types that kernels of products have.
void check_type(DType type) {
    const bool known = kernels::compute_of(type) == kernels::Compute::F32 || type == DType::I32 ||
                       type == DType::I64 || type == DType::I16 || type == DType::I8 || type == DType::U8;
    kernels::check_implemented(known, kernels::scalar_type_of(type), "convolution");
}

}  // namespace

Memory memory_of(const at::TensorBase& tensor, int32_t buffer) {
    return {buffer, kernels::dtype_of(tensor.scalar_type()), tensor.storage().nbytes() > Memory::kHugeBytes,
            static_cast<uint16_t>(kernels::address(tensor) % Memory::kAlignment)};
}

ConvDevice conv_device() {
    const auto layout = [](DType type) { return gemm::fragment_layout(kernels::scalar_type_of(type)); };
    return {runtime::device().info(), layout, gemm::choose_plan, gemm::profile_label};
}

std::shared_ptr<const ConvPlan> plan_for(const ConvProblem& problem) {
    static PlanCache& cache = *new PlanCache;  // threads may still convolve while the process ends
    const uint32_t generation = gemm::plan_generation();
    if (auto found = cache.find(problem, generation)) return found;
    check_type(problem.w.memory.type);
    auto plan = std::make_shared<ConvPlan>(make_plan(problem, conv_device()));
    prepare(*plan);
    if (runtime::logs_plans()) runtime::log_plan("convolution", to_text(problem, *plan));
    // While tiles are tuned each call may have other ones.
    if (generation != 0) cache.insert(problem, plan, generation);
    return plan;
}

void prepare(ConvPlan& plan) {
    for (Pass& pass : plan.passes) {
        if (pass.kind == Pass::Kind::Dispatch)
            pass.pipeline = &kernels::pipeline(kernels::kernel_id(pass.kernel), pass.constants);
    }
}

void execute(const ConvPlan& plan, const GivenTensors& given) {
    Buffers buffers(plan, given);
    for (const Pass& pass : plan.passes) {
        const auto tensor = [&](size_t i) -> const Tensor& {
            return buffers.tensor(pass.accesses[i].buffer);
        };
        switch (pass.kind) {
            case Pass::Kind::Dispatch:
                dispatch(pass, buffers);
                break;
            case Pass::Kind::Zero:
                tensor(0).zero_();
                break;
            case Pass::Kind::SumSplits:
                tensor(1).copy_(
                    (tensor(0).size(0) == 1 ? tensor(0) : at::sum(tensor(0), 0)).view(tensor(1).sizes()));
                break;
        }
        buffers.release(pass);
    }
}

}  // namespace anymps::ops
