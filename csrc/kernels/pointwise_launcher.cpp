#include "kernels/pointwise_launcher.h"

#include <c10/core/DynamicCast.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdlib>

#include "kernels/check_dtype.h"
#include "kernels/float8.h"
#include "kernels/geometry.h"
#include "kernels/launch_config.h"
#include "kernels/pointwise_constants.h"
#include "runtime/command_encoder.h"
#include "runtime/device.h"
#include "runtime/torch_version.h"
#include "vulkan/device.h"

namespace anymps::kernels {
namespace {

using at::ScalarType;
using at::TensorIteratorBase;

using pointwise_shader::DenseArgs, pointwise_shader::StridedArgs;
using shaders::pointwise::StridedDim;

constexpr size_t kMaxDims = 64;  // as ATen
constexpr uint32_t kDenseElementsPerThread = 4 * shaders::pointwise::kSteps;

uint64_t bits(float v) {
    return std::bit_cast<uint32_t>(v);
}
uint64_t bits(int32_t v) {
    return std::bit_cast<uint32_t>(v);
}
uint64_t bits(c10::complex<float> v) {
    return bits(v.real()) | (bits(v.imag()) << 32);
}

// The 8 bytes in which a kernel that computes in `dtype` takes a host value; get<T>() converts the value to
// T.
template <class Get>
uint64_t argument(ScalarType dtype, bool opmath, Get get) {
    switch (dtype) {
        case ScalarType::Half:
            return bits(opmath ? get.template operator()<float>()
                               : float(get.template operator()<c10::Half>()));
        case ScalarType::BFloat16:
            return bits(opmath ? get.template operator()<float>()
                               : float(get.template operator()<c10::BFloat16>()));
        case ScalarType::Float:
            return bits(get.template operator()<float>());
        case ScalarType::Bool:
            return get.template operator()<bool>() ? 1 : 0;
        case ScalarType::Byte:
            return get.template operator()<uint8_t>();
        case ScalarType::Char:
            return bits(int32_t{get.template operator()<int8_t>()});
        case ScalarType::Short:
            return bits(int32_t{get.template operator()<int16_t>()});
        case ScalarType::Int:
            return bits(get.template operator()<int32_t>());
        case ScalarType::Long:
            return static_cast<uint64_t>(get.template operator()<int64_t>());
        case ScalarType::UInt16:
            return get.template operator()<uint16_t>();
        case ScalarType::UInt32:
            return get.template operator()<uint32_t>();
        case ScalarType::UInt64:
            return get.template operator()<uint64_t>();
        case ScalarType::ComplexHalf:
            return bits(opmath ? get.template operator()<c10::complex<float>>()
                               : c10::complex<float>(get.template operator()<c10::complex<c10::Half>>()));
        case ScalarType::ComplexFloat:
            return bits(get.template operator()<c10::complex<float>>());
        default:
            TORCH_INTERNAL_ASSERT(false, "no kernel computes in ", dtype);
    }
}

uint64_t cpu_scalar(TensorIteratorBase& iter, int arg, ScalarType dtype, bool opmath) {
    const ScalarType from = iter.dtype(arg);
    const void* data = iter.data_ptr(arg);
    return argument(dtype, opmath, [&]<class T>() { return c10::fetch_and_cast<T>(from, data); });
}

// A bound of integers, within the range of their dtype; one that no integer of the dtype meets is an error.
// Up to PyTorch 2.14 a bound is converted as any number.
c10::Scalar in_range(const c10::Scalar& bound, [[maybe_unused]] ScalarType dtype,
                     [[maybe_unused]] bool is_min) {
#if ANYMPS_TORCH_UNTIL(2, 14)
    return bound;
#else
    if (!c10::isIntegralType(dtype, /*includeBool=*/false)) return bound;
    const int bits = 8 * static_cast<int>(c10::elementSize(dtype));
    const bool is_signed = c10::isSignedType(dtype);
    const double lowest = is_signed ? -std::ldexp(1.0, bits - 1) : 0.0,
                 highest = std::ldexp(1.0, is_signed ? bits - 1 : bits) - 1.0, value = bound.toDouble();
    TORCH_CHECK(is_min ? value <= highest : value >= lowest, "Clamp ", is_min ? "min" : "max", " value ",
                value, " is outside the representable range of ", dtype);
    if (value >= lowest && value <= highest) return bound;
    return static_cast<int64_t>(value < lowest ? lowest : highest);
#endif
}

// The bytes between the first and the last that an operand touches.
runtime::Access access(const TensorIteratorBase& iter, int arg) {
    int64_t low = 0, high = 0;
    const auto strides = iter.strides(arg);
    const auto shape = iter.shape();
    for (size_t d = 0; d < shape.size(); ++d) {
        const int64_t reach = strides[d] * (shape[d] - 1);
        (reach < 0 ? low : high) += reach;
    }
    const auto address = reinterpret_cast<uint64_t>(iter.data_ptr(arg));
    return {address + low, static_cast<uint64_t>(high - low + iter.element_size(arg)), arg < iter.noutputs()};
}

// One element for every index: a broadcast operand of an iterator that is otherwise dense.
bool is_one(const TensorIteratorBase& iter, int arg) {
    return arg >= iter.noutputs() && (iter.ndim() == 0 || iter.strides(arg)[0] == 0);
}

constexpr int64_t kQuad = 4;  // elements

// Bytes to which a quad of elements is aligned.
int64_t quad_alignment(const TensorIteratorBase& iter, int arg) {
    return std::min<int64_t>(16, kQuad * static_cast<int64_t>(iter.element_size(arg)));
}

bool starts_aligned(const TensorIteratorBase& iter, int arg) {
    return reinterpret_cast<uint64_t>(iter.data_ptr(arg)) %
               static_cast<uint64_t>(quad_alignment(iter, arg)) ==
           0;
}

// Whether each quad along the innermost dimension is one aligned piece of memory.
bool in_row_quads(const TensorIteratorBase& iter, int arg) {
    const auto strides = iter.strides(arg);
    if (strides[0] != static_cast<int64_t>(iter.element_size(arg)) || !starts_aligned(iter, arg))
        return false;
    return std::all_of(strides.begin() + 1, strides.end(),
                       [&](int64_t stride) { return stride % quad_alignment(iter, arg) == 0; });
}

// The same for quads of the flat order.
bool in_flat_quads(const TensorIteratorBase& iter, int arg) {
    int64_t dense = static_cast<int64_t>(iter.element_size(arg));
    for (int d = 0; d < iter.ndim(); dense *= iter.shape()[d++])
        if (iter.strides(arg)[d] != dense) return false;
    return starts_aligned(iter, arg);
}

// How the inputs of a strided dispatch are read, and with it how its elements are taken. Quads want all
// outputs in quads; an input whose neighbours lie far apart (a transposed one) is no better off with them.
struct StridedPlan {
    PointwiseKernel::Walk walk = PointwiseKernel::kSingles;
    std::array<PointwiseKernel::Read, kMaxInputs> read{};  // of the iterator's inputs
};

StridedPlan strided_plan(const TensorIteratorBase& iter, bool singles) {
    if (singles || iter.numel() % kQuad != 0) return {};
    StridedPlan plan;
    const bool rows = iter.shape()[0] % kQuad == 0;
    plan.walk = rows ? PointwiseKernel::kRowQuads : PointwiseKernel::kFlatQuads;
    const auto in_quads = [&](int arg) { return rows ? in_row_quads(iter, arg) : in_flat_quads(iter, arg); };
    for (int arg = 0; arg < iter.noutputs(); ++arg)
        if (!in_quads(arg)) return {};
    for (int arg = iter.noutputs(); arg < iter.ntensors(); ++arg) {
        if (iter.is_cpu_scalar(arg)) continue;
        const auto strides = iter.strides(arg);
        const auto still = [](int64_t stride) { return stride == 0; };
        const bool one = rows ? still(strides[0]) : std::all_of(strides.begin(), strides.end(), still);
        auto& read = plan.read[static_cast<size_t>(arg - iter.noutputs())];
        if (one)
            read = PointwiseKernel::kOne;
        else if (!in_quads(arg))
            read = PointwiseKernel::kApart;
        if (std::abs(strides[0]) > kQuad * static_cast<int64_t>(iter.element_size(arg))) return {};
    }
    return plan;
}

// All operands of the same order without gaps, and aligned for loads of four elements.
bool is_dense(const TensorIteratorBase& iter) {
    if (iter.numel() == 1) return true;
    if (iter.ndim() != 1 || iter.numel() > (int64_t{1} << 31)) return false;
    for (int arg = 0; arg < iter.ntensors(); ++arg) {
        if (is_one(iter, arg)) continue;
        const auto size = static_cast<uint64_t>(iter.element_size(arg));
        const auto quad = std::min<uint64_t>(16, 4 * size);
        if (iter.strides(arg)[0] != static_cast<int64_t>(size)) return false;
        if (reinterpret_cast<uint64_t>(iter.data_ptr(arg)) % quad != 0) return false;
    }
    return true;
}

uint32_t workgroup_size() {
    static const uint32_t size = runtime::device().info().is_software ? 64 : 256;
    return size;
}

// One dispatch under construction.
struct Launch {
    pointwise_shader::Constants constants;
    DenseArgs args;  // of a strided dispatch, too
    c10::SmallVector<runtime::Access, kMaxInputs + kMaxOutputs> accesses;
};

void dispatch_dense(Launch& launch, KernelId id) {
    DenseArgs& args = launch.args;
    const auto grid =
        runtime::Grid::linear((args.count - 1) / (workgroup_size() * kDenseElementsPerThread) + 1);
    args.groups_x = grid.x;
    runtime::encoder().dispatch(pipeline(id, launch.constants.values()), &args, sizeof(args), grid,
                                launch.accesses);
}

void dispatch_strided(const Launch& launch, KernelId id, const TensorIteratorBase& iter,
                      PointwiseKernel::Walk walk, uint32_t pieces_per_thread) {
    const uint32_t width = walk == PointwiseKernel::kSingles ? 1 : kQuad;
    struct {
        StridedArgs args;
        std::array<StridedDim, kMaxDims - 1> rest;  // of args.dims
    } whole;
    StridedArgs& args = whole.args;
    args.operands = launch.args;
    args.operands.count /= width;
    const auto grid =
        runtime::Grid::linear((args.operands.count - 1) / (workgroup_size() * pieces_per_thread) + 1);
    args.operands.groups_x = grid.x;
    args.ndim = static_cast<uint32_t>(iter.ndim());
    for (int d = 0; d < iter.ndim(); ++d) {
        const uint32_t per_step = d == 0 && walk == PointwiseKernel::kRowQuads ? width : 1;
        StridedDim& dim = args.dims.data()[d];
        dim.size = FastDivider(static_cast<uint32_t>(iter.shape()[d]) / per_step);
        for (int arg = 0; arg < iter.ntensors(); ++arg) {
            const size_t slot = arg < iter.noutputs() ? arg : kMaxOutputs + arg - iter.noutputs();
            dim.strides[slot] = static_cast<int32_t>(iter.strides(arg)[d]) * static_cast<int32_t>(per_step);
        }
    }
    runtime::encoder().dispatch_pointer(pipeline(id, launch.constants.values()), &args,
                                        offsetof(StridedArgs, dims) + args.ndim * sizeof(StridedDim), grid,
                                        launch.accesses);
}

// One of the numbers among the inputs, which are the first of the scalars.
uint64_t input_number(const PointwiseKernel& kernel, const c10::Scalar* number,
                      std::initializer_list<c10::Scalar> scalars, ScalarType compute) {
    const bool opmath = kernel.has(PointwiseKernel::kOpmath),
               is_min = kernel.has(PointwiseKernel::kMinBound) && number == scalars.begin();
    if (!is_min && !kernel.has(PointwiseKernel::kMaxBound)) return scalar_argument(*number, compute, opmath);
    return scalar_argument(in_range(*number, compute, is_min), compute, opmath);
}

void launch(TensorIteratorBase& iter, const PointwiseKernel& kernel,
            std::initializer_list<c10::Scalar> scalars, ScalarType compute, bool dense) {
    Launch launch;
    DenseArgs& args = launch.args;
    const uint32_t common = code(compute);
    const bool opmath = kernel.has(PointwiseKernel::kOpmath), as_bits = kernel.has(PointwiseKernel::kBits);
    const int outputs = iter.noutputs(), inputs = static_cast<int>(kernel.inputs());
    const bool one_by_one =
        kernel.has(PointwiseKernel::kHeavy) || c10::isComplexType(compute) || launch_config().software;
    const StridedPlan plan = dense ? StridedPlan{} : strided_plan(iter, one_by_one);
    const auto operand_code = [&](int arg) -> uint32_t {
        const uint32_t type = as_bits ? common : code(iter.dtype(arg));
        if (arg < outputs) return type | (arg == 0 ? plan.walk : 0);
        if (dense) return type | (is_one(iter, arg) ? PointwiseKernel::kOne : PointwiseKernel::kTensor);
        return type | plan.read[static_cast<size_t>(arg - outputs)];
    };
    launch.constants.workgroup = workgroup_size();
    launch.constants.common = common;
    for (int k = 0; k < outputs; ++k) {
        output_code(launch.constants, k) = operand_code(k);
        args.outputs[k] = reinterpret_cast<uint64_t>(iter.data_ptr(k));
        launch.accesses.push_back(access(iter, k));
    }
    auto scalar = scalars.begin();
    for (int k = 0; k < inputs; ++k) {
        const int arg = outputs + k;
        uint32_t& constant = input_code(launch.constants, k);
        if (arg < iter.ntensors() && !iter.is_cpu_scalar(arg)) {
            constant = operand_code(arg);
            args.inputs[k] = reinterpret_cast<uint64_t>(iter.data_ptr(arg));
            launch.accesses.push_back(access(iter, arg));
        } else {
            constant = common | PointwiseKernel::kImmediate;
            args.inputs[k] = arg < iter.ntensors() ? cpu_scalar(iter, arg, compute, opmath)
                                                   : input_number(kernel, scalar++, scalars, compute);
        }
    }
    for (uint64_t* to = args.scalars.bits.data(); scalar != scalars.end();)
        *to++ = scalar_argument(*scalar++, compute, true);
    args.count = static_cast<uint32_t>(iter.numel());
    const auto layout = dense ? PointwiseKernel::kDense : PointwiseKernel::kStrided;
    const KernelId id = kernel.id(layout, compute_of(compute));
    if (dense) return dispatch_dense(launch, id);
    dispatch_strided(launch, id, iter, plan.walk, one_by_one ? 1 : 2);
}

}  // namespace

uint64_t scalar_argument(const c10::Scalar& value, ScalarType dtype, bool opmath) {
    return argument(dtype, opmath, [&]<class T>() { return value.to<T>(); });
}

void PointwiseKernel::raise_not_implemented(c10::ScalarType dtype) const {
    kernels::raise_not_implemented(dtype, label_);
}

KernelId PointwiseKernel::look_up(Layout layout, Compute compute) const {
    const KernelId id =
        kernel_id(std::string(name_) + '_' + suffix(compute) + (layout == kDense ? "_dense" : "_strided"));
    ids_[layout][static_cast<uint32_t>(compute)].store(id + 1, std::memory_order_relaxed);
    return id;
}

void pointwise(TensorIteratorBase& iter, const PointwiseKernel& kernel,
               std::initializer_list<c10::Scalar> scalars, ScalarType compute) {
    if (compute == ScalarType::Undefined) compute = iter.common_dtype();
    if (kernel.has(PointwiseKernel::kFloat8) && is_float8(compute)) [[unlikely]]
        return pointwise_of_float8(iter, kernel, scalars, compute);
    kernel.check(compute);
    if (iter.numel() == 0) {
        // Bounds are checked all the same, as on the CPU.
        if (kernel.has(PointwiseKernel::kMinBound) || kernel.has(PointwiseKernel::kMaxBound))
            for (const auto& bound : scalars) input_number(kernel, &bound, scalars, compute);
        return;
    }
    TORCH_INTERNAL_ASSERT(iter.noutputs() <= static_cast<int>(kMaxOutputs) &&
                          iter.ninputs() <= static_cast<int>(kernel.inputs()) &&
                          scalars.size() + iter.ninputs() - kernel.inputs() <= kMaxScalars);
    const bool dense = is_dense(iter);
    if (dense || iter.can_use_32bit_indexing()) return launch(iter, kernel, scalars, compute, dense);
    for (auto& part : iter.with_32bit_indexing()) pointwise(part, kernel, scalars, compute);
}

}  // namespace anymps::kernels
