#include "gemm/epilogue.h"

#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <array>

namespace anymps::gemm {
namespace {

// Functions by their numbers in shaders/lib/epilogue.slang, and what is done with them.
constexpr std::array<std::string_view, 9> kFunctions{"",        "relu", "gelu",      "gelu_tanh", "silu",
                                                     "sigmoid", "tanh", "hardswish", "relu6"};
constexpr std::array<std::string_view, 4> kUses{"", "_backward", "_mul", "_add"};
constexpr size_t kMaxSteps = 4;

// 0: there is no such step.
uint32_t code_of(std::string_view name) {
    if (name == "mul") return 2 << 4;
    if (name == "add") return 3 << 4;
    for (size_t use = 0; use < kUses.size(); ++use) {
        if (!name.ends_with(kUses[use])) continue;
        const std::string_view function = name.substr(0, name.size() - kUses[use].size());
        for (size_t f = 1; f < kFunctions.size(); ++f)
            if (function == kFunctions[f]) return static_cast<uint32_t>(use << 4 | f);
    }
    return 0;
}

}  // namespace

EpilogueSteps epilogue_steps(std::string_view names) {
    EpilogueSteps steps;
    size_t count = 0;
    while (!names.empty()) {
        const std::string_view name = names.substr(0, names.find(' '));
        names.remove_prefix(std::min(name.size() + 1, names.size()));
        const uint32_t code = code_of(name);
        TORCH_CHECK_VALUE(code != 0, "there is no epilogue ", name);
        TORCH_CHECK_VALUE(count < kMaxSteps, "expected at most ", kMaxSteps,
                          " steps of an epilogue, but got more");
        steps.code |= code << (8 * count++);
    }
    return steps;
}

at::Tensor epilogue_operand(EpilogueSteps steps, const at::Tensor& operand, const at::Tensor& results) {
    TORCH_CHECK(operand.defined() == steps.has_operand(),
                "expected an operand where, and only where, a step has one");
    if (!steps) return operand;
    TORCH_CHECK(at::isFloatingType(results.scalar_type()), "expected floating point results, but got ",
                results.dtype());
    if (!operand.defined()) return operand;
    TORCH_CHECK(operand.sizes() == results.sizes() && operand.dtype() == results.dtype(),
                "expected an operand of ", results.sizes(), " and ", results.dtype(), ", but got ",
                operand.sizes(), " and ", operand.dtype());
    if (operand.strides() == results.strides()) return operand;
    at::Tensor copy = at::empty_strided(results.sizes(), results.strides(), results.options());
    return copy.copy_(operand);
}

}  // namespace anymps::gemm
