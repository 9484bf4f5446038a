#include "runtime/fallback.h"

#include <c10/util/Exception.h>
#include <caffe2/core/common.h>
#include <torch/library.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <string_view>

#include "runtime/cpu_arguments.h"

namespace anymps::runtime {

namespace {

struct Counts {
    std::mutex mutex;
    std::map<std::string, int64_t> calls;
    std::map<std::string, bool> warned;  // kept over a reset: one warning an operator and process

    static Counts& instance() {
        static auto* counts = new Counts;
        return *counts;
    }
};

// Operators that ran on the CPU, whether as a fallback or because LAPACK is their core.
struct HostTimes {
    struct Time {
        int64_t calls = 0;
        double seconds = 0;
    };
    std::mutex mutex;
    std::map<std::string, Time> times;

    static HostTimes& instance() {
        static auto* times = new HostTimes;
        return *times;
    }
};

bool fallback_enabled() {
    const char* value = std::getenv("PYTORCH_ENABLE_MPS_FALLBACK");
    return value != nullptr && std::strtol(value, nullptr, 10) != 0;
}

void count_and_warn(const c10::OperatorHandle& op) {
    const auto& name = op.schema().operator_name();
    {
        auto& counts = Counts::instance();
        const std::lock_guard lock(counts.mutex);
        ++counts.calls[c10::toString(name)];
        if (std::exchange(counts.warned[c10::toString(name)], true)) return;
    }
    TORCH_WARN("The operator '", name,
               "' is not currently supported on the MPS backend and will fall back to run on ",
               "the CPU. This may have performance implications.");
}

// The namespace of an operator is the library that defines it.
std::string_view library_of(const c10::OperatorHandle& op) {
    const std::string_view name = op.schema().operator_name().name;
    return name.substr(0, name.find("::"));
}

bool is_pytorch(std::string_view library) {
    constexpr std::string_view kNamespaces[] = {
        "aten", "prims", "quantized", "_quantized", "c10d", "_c10d_functional", "mkldnn", "onednn", "sparse"};
    return std::find(std::begin(kNamespaces), std::end(kNamespaces), library) != std::end(kNamespaces);
}

// Collectives address processes, not devices: running one on CPU copies would silently use another process
// group.
bool is_collective(const c10::OperatorHandle& op) {
    return library_of(op) == "c10d";
}

// PyTorch chooses a convolution's kernel by its input, the dispatcher by all its tensors: of an input on the
// CPU and a weight on mps both come to the CPU's operators here.
void check_convolution(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
    const std::string_view name = op.schema().operator_name().name;
    if (name.find("::slow_conv") == name.npos && name.find("::_slow_conv") == name.npos) return;
    const size_t count = op.schema().arguments().size();
    const c10::IValue &first = torch::jit::peek(stack, 0, count), &second = torch::jit::peek(stack, 1, count);
    if (!first.isTensor() || !second.isTensor()) return;
    const at::Tensor &input = first.toTensor(), &weight = second.toTensor();
    TORCH_CHECK(input.device() == weight.device(), "Input type (", input.toString(), ") and weight type (",
                weight.toString(), ") should be the same");
}

}  // namespace

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    const auto begin = std::chrono::steady_clock::now();
    CpuArguments arguments(op.schema(), *stack);
    torch::jit::drop(*stack, op.schema().arguments().size());
    for (auto& value : arguments.on_cpu()) stack->push_back(std::move(value));
    op.redispatchBoxed(arguments.keys_on_cpu(), stack);
    arguments.write_back();
    for (auto& result : torch::jit::last(*stack, op.schema().returns().size())) {
        // last() gives a const view of the stack, which we own.
        const_cast<c10::IValue&>(result) = arguments.to_device(result);
    }
    auto& host = HostTimes::instance();
    const std::lock_guard lock(host.mutex);
    auto& time = host.times[c10::toString(op.schema().operator_name())];
    ++time.calls;
    time.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    check_convolution(op, *stack);
    if (fallback_enabled() && !is_collective(op)) {
        count_and_warn(op);
        run_on_cpu(op, stack);
        return;
    }
    const std::string_view library = library_of(op);
    TORCH_CHECK_NOT_IMPLEMENTED(
        is_pytorch(library), "The operator '", op.schema().operator_name(), "' of the library ", library,
        " is not implemented for the MPS device. If you want it to be, please ask the maintainers of ",
        library,
        ", or register a kernel of your own with torch.library. As a temporary fix, you can set the "
        "environment variable `PYTORCH_ENABLE_MPS_FALLBACK=1` to use the CPU as a fallback for this op. "
        "WARNING: this will be slower than running natively on MPS.");
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "The operator '", op.schema().operator_name(),
        "' is not currently implemented for the MPS device. If you want this op to be considered for "
        "addition please "
        "comment on https://github.com/pytorch/pytorch/issues/141287 and mention use-case, that resulted in "
        "missing op "
        "as well as commit hash ",
        caffe2::GetBuildOptions().at("COMMIT_SHA"),
        ". As a temporary fix, you can set the environment variable `PYTORCH_ENABLE_MPS_FALLBACK=1` to use "
        "the CPU as a "
        "fallback for this op. WARNING: this will be slower than running natively on MPS.");
}

std::map<std::string, int64_t> fallback_counts() {
    auto& counts = Counts::instance();
    const std::lock_guard lock(counts.mutex);
    return counts.calls;
}

void reset_fallback_counts() {
    auto& counts = Counts::instance();
    const std::lock_guard lock(counts.mutex);
    counts.calls.clear();
}

namespace {

TORCH_LIBRARY_IMPL(_, MPS, m) {
    m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}
TORCH_LIBRARY_IMPL(_, SparseMPS, m) {
    m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}
TORCH_LIBRARY_IMPL(_, SparseCsrMPS, m) {
    m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_FRAGMENT(anymps, m) {
    m.def("fallback_counts() -> (str[], int[])", [] {
        std::vector<std::string> names;
        std::vector<int64_t> calls;
        for (const auto& [name, count] : fallback_counts()) {
            names.push_back(name);
            calls.push_back(count);
        }
        return std::make_tuple(names, calls);
    });
    m.def("reset_fallback_counts() -> ()", [] { reset_fallback_counts(); });
    // Operators that ran on the CPU, their calls and seconds, waiting and copying included.
    m.def("host_times() -> (str[], int[], float[])", [] {
        auto& host = HostTimes::instance();
        const std::lock_guard lock(host.mutex);
        std::tuple<std::vector<std::string>, std::vector<int64_t>, std::vector<double>> result;
        for (const auto& [name, time] : host.times) {
            std::get<0>(result).push_back(name);
            std::get<1>(result).push_back(time.calls);
            std::get<2>(result).push_back(time.seconds);
        }
        return result;
    });
}

}  // namespace

}  // namespace anymps::runtime
