// Launches the rows of pointwise.yaml over a TensorIterator.
#pragma once

#include <ATen/TensorIterator.h>
#include <anymps/shaders/lib/pointwise.h>
#include <c10/core/Scalar.h>

#include <atomic>
#include <cstdint>
#include <initializer_list>

#include "kernels/dtype.h"
#include "kernels/kernel_library.h"

namespace anymps::kernels {

// What a functor computes and the kernels made of it: `<name>_<f32|i32|i64|c64>_<dense|strided>`. The
// generated constants of anymps/kernels/pointwise_kernels.h; constant-initialised, ids are looked up once.
class PointwiseKernel {
  public:
    enum Layout : uint32_t { kDense, kStrided };
    enum Flag : uint32_t {
        kOpmath =
            1,  // CPU scalars stay in the arithmetic type; without it they are rounded to the common dtype
        kBits = 2,   // operands are read and written as the dtype that is computed in, whatever their own
        kHeavy = 4,  // a long functor, as all complex ones: its strided kernel does one element a thread
        // Numbers among the inputs, first a minimum, then a maximum, are cut to the range of integers.
        kMinBound = 8,
        kMaxBound = 16,
        kFloat8 = 32,  // floats of 8 bits are computed in float32
    };

    // How an operand is read, beside its dtype in the low 4 bits.
    enum Read : uint32_t {
        kTensor = shaders::pointwise::kTensor << 4,
        kOne = shaders::pointwise::kOne << 4,
        kImmediate = shaders::pointwise::kImmediate << 4,
        kApart = shaders::pointwise::kApart << 4
    };

    // How a strided kernel takes elements, in the code of output 0.
    enum Walk : uint32_t {
        kSingles = shaders::pointwise::kSingles << 4,
        kRowQuads = shaders::pointwise::kRowQuads << 4,
        kFlatQuads = shaders::pointwise::kFlatQuads << 4
    };

    // label: the name in "not implemented for" errors. inputs: operands of the functor.
    // dtypes: one bit a c10::ScalarType that the row computes in.
    constexpr PointwiseKernel(const char* name, const char* label, uint32_t inputs, uint64_t dtypes,
                              uint32_t flags)
        : name_(name), label_(label), inputs_(inputs), dtypes_(dtypes), flags_(flags) {}

    const char* name() const { return name_; }
    uint32_t inputs() const { return inputs_; }
    bool has(Flag flag) const { return (flags_ & flag) != 0; }
    bool computes_in(c10::ScalarType dtype) const {
        return ((dtypes_ >> static_cast<uint32_t>(dtype)) & 1) != 0;
    }
    // Raises NotImplementedError in the CPU's words where the row does not compute in a dtype.
    void check(c10::ScalarType dtype) const {
        if (!computes_in(dtype)) [[unlikely]]
            raise_not_implemented(dtype);
    }
    KernelId id(Layout layout, Compute compute) const {
        const uint32_t id = ids_[layout][static_cast<uint32_t>(compute)].load(std::memory_order_relaxed);
        return id != 0 ? id - 1 : look_up(layout, compute);
    }

  private:
    [[noreturn]] void raise_not_implemented(c10::ScalarType dtype) const;
    KernelId look_up(Layout layout, Compute compute) const;

    const char* name_;
    const char* label_;
    uint32_t inputs_;
    uint64_t dtypes_;
    uint32_t flags_;
    mutable std::atomic<uint32_t> ids_[2][4]{};  // id + 1
};

// Runs a row over an iterator whose operands are on the device, or are CPU scalars; any strides, any size.
//
// The functor's inputs are the iterator's inputs and then, where it has more, the first of `scalars`; the
// other scalars are its scalar arguments. compute is the dtype to compute in: Undefined takes the iterator's
// common dtype. Results are rounded once, to the dtype of each output.
void pointwise(at::TensorIteratorBase& iter, const PointwiseKernel& kernel,
               std::initializer_list<c10::Scalar> scalars = {},
               c10::ScalarType compute = c10::ScalarType::Undefined);

// The same of a row that is kFloat8, where `compute` is such a dtype: by way of tensors of float32.
void pointwise_of_float8(at::TensorIteratorBase& iter, const PointwiseKernel& kernel,
                         std::initializer_list<c10::Scalar> scalars, c10::ScalarType compute);

// The 8 bytes in which a kernel that computes in `dtype` takes a host value, which is rounded to dtype first
// unless opmath.
uint64_t scalar_argument(const c10::Scalar& value, c10::ScalarType dtype, bool opmath);

// Copies input 0 to output 0 of an iterator on the device and converts between any two dtypes.
void pointwise_copy(at::TensorIteratorBase& iter);

}  // namespace anymps::kernels
