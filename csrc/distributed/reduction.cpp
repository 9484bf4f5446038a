#include "distributed/reduction.h"

#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/div.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/Exception.h>

namespace anymps::distributed {
namespace {

using Op = c10d::ReduceOp;

// What gloo adds, or what holds it.
c10::ScalarType exchanged_dtype(c10::ScalarType dtype) {
    switch (dtype) {
        case at::kShort:
        case at::kUInt16:
            return at::kInt;
        case at::kUInt32:
        case at::kUInt64:
            return at::kLong;
        case at::kFloat8_e4m3fn:
        case at::kFloat8_e5m2:
            return at::kFloat;
        default:
            return dtype;
    }
}

const char* name_of(Op::RedOpType type) {
    constexpr const char* kNames[] = {"SUM",  "AVG", "PRODUCT", "MIN",       "MAX",
                                      "BAND", "BOR", "BXOR",    "PREMUL_SUM"};
    return type < std::size(kNames) ? kNames[type] : "of an unknown kind";
}

bool is_bitwise(Op::RedOpType type) {
    return type == Op::BAND || type == Op::BOR || type == Op::BXOR;
}

// For bool, whose bytes gloo would add: the bitwise operation of the same result.
Op::RedOpType for_bool(Op::RedOpType type) {
    switch (type) {
        case Op::SUM:
        case Op::MAX:
            return Op::BOR;
        case Op::PRODUCT:
        case Op::MIN:
            return Op::BAND;
        default:
            return type;
    }
}

// By the number of ranks, towards zero for integers.
void divide(Tensor& sum, int64_t ranks) {
    if (c10::isIntegralType(sum.scalar_type(), false)) {
        sum.div_(ranks, "trunc");
    } else {
        sum.div_(ranks);
    }
}

}  // namespace

void combine(Tensor sum, const Tensor& term, Op::RedOpType op) {
    switch (op) {
        case Op::SUM:
            sum.add_(term);
            break;
        case Op::PRODUCT:
            sum.mul_(term);
            break;
        case Op::MIN:
            at::minimum_out(sum, sum, term);
            break;
        case Op::MAX:
            at::maximum_out(sum, sum, term);
            break;
        case Op::BAND:
            at::bitwise_and_out(sum, sum, term);
            break;
        case Op::BOR:
            at::bitwise_or_out(sum, sum, term);
            break;
        case Op::BXOR:
            at::bitwise_xor_out(sum, sum, term);
            break;
        default:
            TORCH_INTERNAL_ASSERT(false, "a ReduceOp that gloo does not know either");
    }
}

Tensor reduced_on_host(const Tensors& parts, Op::RedOpType op) {
    const c10::ScalarType dtype = parts[0].scalar_type(), wide = dtype == at::kHalf || dtype == at::kBFloat16
                                                                     ? at::kFloat
                                                                     : exchanged_dtype(dtype);
    Tensor result = parts[0].to(wide, false, true);
    for (size_t rank = 1; rank < parts.size(); ++rank)
        combine(result, parts[rank].to(wide), op == Op::AVG ? Op::SUM : op);
    if (op == Op::AVG) divide(result, static_cast<int64_t>(parts.size()));
    return result;
}

Reduction::Reduction(const char* name, const Op& op, c10::ScalarType dtype, int ranks)
    : op_(op),
      type_(op.op_),
      dtype_(c10::isComplexType(dtype) ? c10::toRealValueType(dtype) : dtype),
      exchanged_(exchanged_dtype(dtype_)),
      ranks_(ranks) {
    TORCH_CHECK(!c10::isComplexType(dtype) || c10d::isComplexViewAsRealAllowed(op) || type_ == Op::AVG, name,
                " does not support ReduceOp.", name_of(type_), " on complex tensors");
    TORCH_CHECK(!is_bitwise(type_) || c10::isIntegralType(dtype_, true), "Cannot use ReduceOp.",
                name_of(type_), " with non-integral dtype");
    TORCH_CHECK(dtype_ != at::kBool || (type_ != Op::AVG && type_ != Op::PREMUL_SUM), "Cannot use ReduceOp.",
                name_of(type_), " with bool inputs");
    TORCH_CHECK(dtype_ != at::kUInt64 || (type_ != Op::MIN && type_ != Op::MAX), "Cannot use ReduceOp.",
                name_of(type_), " with uint64 inputs");
    // As NCCL: the two that it knows.
    TORCH_CHECK(!c10::isFloat8Type(dtype_) || exchanged_ == at::kFloat, name, " does not add ", dtype_,
                ": convert the tensor first");
    // As NCCL: products of integers with a number would be rounded to float32.
    TORCH_CHECK(type_ != Op::PREMUL_SUM || c10::isFloatingType(dtype_), "Cannot use ReduceOp.",
                name_of(type_), " with non-floating dtype");
    TORCH_CHECK(type_ <= Op::PREMUL_SUM, name, ": unknown ReduceOp");
    if (dtype_ == at::kBool) type_ = for_bool(type_);
}

Tensor Reduction::real(const Tensor& tensor) {
    return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

Tensor Reduction::scaled(const Tensor& tensor) const {
    const auto& factor = static_cast<const c10d::PreMulSumSupplement&>(*op_.supplement_);
    if (factor.tensor_factor.defined()) return at::mul(tensor, factor.tensor_factor.to(tensor.device()));
    return at::mul(tensor, factor.double_factor);
}

Tensor Reduction::prepared(const Tensor& tensor) const {
    Tensor result = tensor;
    if (dtype_ == at::kUInt64) {
        result = tensor.view(at::kLong);
    } else if (dtype_ != exchanged_) {
        result = tensor.to(exchanged_);
    }
    if (type_ == Op::PREMUL_SUM) return scaled(result).to(exchanged_);
    if (type_ == Op::AVG && dtype_ == at::kHalf) return at::div(result, ranks_);
    return result;
}

c10::ScalarType Reduction::local_dtype() const {
    return c10::isFloat8Type(dtype_) ? exchanged_ : dtype_;
}

Tensor Reduction::prepared_locally(const Tensor& tensor) const {
    const Tensor local = tensor.to(local_dtype());
    return type_ == Op::PREMUL_SUM ? scaled(local).to(local_dtype()) : local;
}

Op::RedOpType Reduction::local_op() const {
    return type_ == Op::PREMUL_SUM ? Op::SUM : type_;
}

Op Reduction::gloo_op() const {
    return type_ == Op::AVG || type_ == Op::PREMUL_SUM ? Op(Op::SUM) : Op(type_);
}

void Reduction::finish(Tensor& reduced) const {
    if (type_ != Op::AVG || dtype_ == at::kHalf) return;
    divide(reduced, ranks_);
}

Tensor Reduction::reduced(const Tensor& parts) const {
    if (gloo_op().op_ == Op::SUM) {
        Tensor sum = at::sum(parts, at::IntArrayRef{0}, false, parts.scalar_type());
        finish(sum);
        return sum;
    }
    Tensor result = parts.select(0, 0);
    for (int rank = 1; rank < ranks_; ++rank) combine(result, parts.select(0, rank), type_);
    return result;
}

}  // namespace anymps::distributed
