// Rows of pointwise.yaml over lists of tensors: one dispatch for all tensors of a dtype.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <initializer_list>
#include <optional>
#include <variant>
#include <vector>

#include "kernels/pointwise_launcher.h"

namespace anymps::kernels {

// An input or a scalar argument of a row: a tensor for each entry, one 0-d tensor for all, a number for all,
// or a number for each.
using ForeachOperand = std::variant<at::TensorList, at::Tensor, c10::Scalar, at::ArrayRef<c10::Scalar>>;
using ForeachOperands = std::initializer_list<ForeachOperand>;

// Result i of the row from operands i, as one call an entry gives it: std::nullopt and false, with nothing
// done, where that asks for such calls. The entries must be floating point tensors of one dtype and one dense
// layout each, whose results no other entry reads.
std::optional<std::vector<at::Tensor>> foreach (const PointwiseKernel& row, ForeachOperands operands);
bool foreach_into(const PointwiseKernel& row, at::TensorList out, ForeachOperands operands);

// Copies between lists of floating point tensors of any dtypes.
bool foreach_copy(at::TensorList to, at::TensorList from);

}  // namespace anymps::kernels
