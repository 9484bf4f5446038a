#include "gemm/gemm.h"

#include <ATen/Context.h>

#include <algorithm>
#include <utility>

#include "gemm/fragments.h"
#include "gemm/gemm_execution.h"
#include "gemm/gemm_plan.h"
#include "gemm/operand_layout.h"
#include "gemm/scaled_rows.h"
#include "gemm/tuning.h"
#include "kernels/check_dtype.h"
#include "kernels/dtype.h"
#include "runtime/device.h"
#include "runtime/plan_log.h"

namespace anymps::gemm {
namespace {

using at::Tensor;
using kernels::Compute;

// bf16 terms that torch.set_float32_matmul_precision asks for.
uint32_t bf16_terms_of_f32() {
    switch (at::globalContext().float32MatmulPrecision()) {
        case at::Float32MatmulPrecision::MEDIUM:
            return 1;
        case at::Float32MatmulPrecision::HIGH:
            return 2;
        default:
            return 3;
    }
}

Arithmetic arithmetic_of(const Gemm& g) {
    const auto type = g.a.tensor->scalar_type();
    if (type != g.b.tensor->scalar_type()) return Arithmetic::Simt;
    // Of small f32 products a tile of matrix units would be padding for the most part, and these add with
    // truncation: powers of a matrix have it many times over.
    constexpr int64_t kSmallSide = 32, kShortSum = 16;
    if (type == at::kFloat && std::max(g.m, g.n) <= kSmallSide && g.k <= kShortSum) return Arithmetic::Simt;
    return choose_arithmetic(runtime::device().info(), type == at::kHalf, type == at::kBFloat16,
                             type == at::kFloat, type == at::kFloat ? bf16_terms_of_f32() : 3);
}

// Bits of the contiguous sides of the operands, and of beta * self.
uint64_t variant_of(const Gemm& g) {
    const bool bits[] = {
        g.a.row == 1,      g.a.column == 1,         g.b.row == 1, g.b.column == 1, g.out.row == 1,
        g.out.column == 1, g.self.tensor != nullptr};
    uint64_t variant = 0;
    for (const bool bit : bits) variant = 2 * variant + bit;
    return variant;
}

// Requirements of the pipelined tiles. Their offsets are 32 bits for up to 192 rows, or 64 k.
bool has_vectors(const Gemm& g, const GemmCall& call) {
    constexpr int64_t kBlock = 64, kLongStride = 1 << 23;
    const int64_t longest = std::max({g.a.row, g.a.column, g.b.row, g.b.column});
    return g.k > 0 && g.k % kBlock == 0 && longest < kLongStride && call.a.vectorizable &&
           call.b.vectorizable;
}

// Not in place: the fallback would read self after it was overwritten.
bool can_use_scaled_f16(const Gemm& g, const GemmProblem& p) {
    const bool floats = g.a.tensor->scalar_type() == at::kFloat && g.b.tensor->scalar_type() == at::kFloat;
    const bool in_place = g.self.tensor != nullptr && g.self.tensor->is_alias_of(*g.out.tensor);
    const auto& info = runtime::device().info();
    return p.floating && floats && !in_place && std::min(p.m, p.n) >= 16 && multiplies_scaled_f16(info) &&
           worth_scaled_f16(info, g.batch, g.m, g.n, g.k);
}

GemmOperand operand_of(const Matrices& operand, int64_t rows, const Gemm& g, bool sixteen_bits) {
    return {.along_rows = operand.row == 1,
            .follows_k = follows_k(operand),
            .vectorizable = sixteen_bits && is_vec8(operand, rows, g.k, g.batch),
            .broadcast = operand.batch == 0};
}

GemmCall call_of(const Gemm& g, Compute compute) {
    const auto& info = runtime::device().info();
    GemmCall call;
    GemmProblem& p = call.problem;
    p.batch = g.batch;
    p.m = g.m;
    p.n = g.n;
    p.k = g.k;
    p.floating = compute == Compute::F32;
    if (p.floating) p.arithmetic = arithmetic_of(g);
    p.may_swap = !uses_shared_memory(info);
    // With one k there is nothing to follow: such operands may be read four rows at a time, which that kernel
    // cannot.
    p.k_contiguous = g.k > 1 && g.a.column == 1 && g.b.row == 1;
    p.n_contiguous = uses_shared_memory(info) &&
                     vec4_layout(g.b.transposed(), g.n, g.k, g.batch) == BlockLayout::MnMajorVec;
    if (can_use_scaled_f16(g, p)) {
        p.arithmetic = bf16_terms_of_f32() == 3 ? Arithmetic::F16x2 : Arithmetic::F16x1;
        p.may_pack = holds_fragments(at::kHalf);
    }
    const bool sixteen_bits = p.arithmetic == Arithmetic::F16 || p.arithmetic == Arithmetic::BF16;
    call.a = operand_of(g.a, g.m, g, sixteen_bits);
    call.b = operand_of(g.b.transposed(), g.n, g, sixteen_bits);
    if (sixteen_bits) {
        p.may_pack = can_use_fragments(g.a.tensor->scalar_type(), g.batch, g.m, g.n, g.k);
        p.vectorizable = has_vectors(g, call);
    }
    p.variant = variant_of(g);
    call.item_bytes = g.a.tensor->element_size();
    call.accumulator_bytes = c10::elementSize(accumulator_of(compute));
    call.bf16_terms = bf16_terms_of_f32();
    call.sum_batch = g.sum_batch;
    return call;
}

}  // namespace

Matrices matrices(const Tensor& tensor) {
    if (tensor.dim() == 2) return {&tensor, 0, tensor.stride(0), tensor.stride(1)};
    return {&tensor, tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

void Gemm::transpose() {
    std::swap(m, n);
    const Matrices left = a;
    a = b.transposed();
    b = left.transposed();
    out = out.transposed();
    self = self.transposed();
}

void Gemm::run() {
    const auto type = out.tensor->scalar_type();
    const Compute compute = kernels::compute_of(type);
    const bool known = compute == Compute::F32 || compute == Compute::C64 || type == at::kInt ||
                       type == at::kLong || type == at::kShort || type == at::kChar || type == at::kByte;
    kernels::check_implemented(known, type, name);
    if ((batch == 0 && !sum_batch) || m == 0 || n == 0) return;
    Gemm g = *this;
    if (g.batch == 0) {  // a sum of no products is one product of no terms
        g.batch = 1;
        g.k = 0;
        g.sum_batch = false;
    }
    if (self.tensor != nullptr && beta.equal(0.0)) g.self = kNoMatrices;
    // Results that follow one another along a column are the rows of the transposed product.
    if (g.out.column != 1 && g.out.row == 1 && g.m > 1) g.transpose();
    if (g.n == 1 && g.m > 1 && g.a.row == 1) g.transpose();  // a matrix and a vector

    const auto& info = runtime::device().info();
    const GemmCall call = call_of(g, compute);
    const GemmPlan plan = make_gemm_plan(info, call, choose_plan(info, call.problem));
    if (runtime::logs_plans()) [[unlikely]]
        runtime::log_plan(name, to_text(call, plan));
    execute(g, compute, plan);
}

}  // namespace anymps::gemm
