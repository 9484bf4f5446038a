// What every generated declaration header includes: the marker of ops without a structured group, ATen's
// names.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <optional>

// Marks the definition of one overload for tools/gen_registration.py: `Tensor ANYMPS_FUNC(view)(...)` is
// aten::view on mps. The name is that of native_functions.yaml with '.' as '_'. Structured ops use ATen's
// TORCH_IMPL_FUNC.
#define ANYMPS_FUNC(name) name

namespace anymps::ops {

using at::Device;
using at::Generator;
using at::IntArrayRef;
using at::Layout;
using at::MemoryFormat;
using at::OptionalIntArrayRef;
using at::Scalar;
using at::ScalarType;
using at::Tensor;
using at::TensorList;
using at::TensorOptions;

}  // namespace anymps::ops
