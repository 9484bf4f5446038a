// The arithmetic of collectives that reduce: what PyTorch's ReduceOp means for a dtype, and what of it gloo
// knows.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "distributed/host_argument.h"

namespace anymps::distributed {

// sum = sum op term, elementwise; on the CPU too. op: one that gloo knows (Reduction::gloo_op).
void combine(Tensor sum, const Tensor& term, c10d::ReduceOp::RedOpType op);

// The reduction of CPU tensors, one a rank, in their order. op: Reduction::local_op. Of 16-bit floats and of
// unsigned integers the result is of a wider dtype.
Tensor reduced_on_host(const Tensors& parts, c10d::ReduceOp::RedOpType op);

// A collective's reduction over the ranks of a group. Every method records on the device and returns at once.
//
// bool takes SUM for "any" and PRODUCT for "all", as NCCL does. AVG divides the sum, towards zero for
// integers; of float16 the terms, as their sum may overflow. Complex numbers are summed by parts. What gloo
// cannot add (16-bit and unsigned integers) travels in a wider dtype, and 8-bit floats always do: their sums
// are rounded once. Raises for 8-bit floats but float8_e4m3fn and float8_e5m2, for MIN and MAX of
// uint64, and for the operations that PyTorch refuses: AVG of bool, bits of floats, MIN and its like of
// complex numbers.
class Reduction {
  public:
    // name: as users call the collective.
    Reduction(const char* name, const c10d::ReduceOp& op, c10::ScalarType dtype, int ranks);

    // The real parts and the imaginary ones of a complex tensor as one real tensor over the same memory.
    static Tensor real(const Tensor& tensor);

    // What travels in the place of real(tensor): itself where nothing has to be done to it first.
    Tensor prepared(const Tensor& tensor) const;
    c10d::ReduceOp gloo_op() const;
    // The same where ranks share memory, whose reductions know AVG and all dtypes but 8-bit floats.
    Tensor prepared_locally(const Tensor& tensor) const;
    c10::ScalarType local_dtype() const;
    c10d::ReduceOp::RedOpType local_op() const;
    // What is left to do once the parts are reduced, in place.
    void finish(Tensor& reduced) const;

    // The reduction of parts, [ranks, ...], that were prepared; finished. Overwrites them.
    Tensor reduced(const Tensor& parts) const;

  private:
    Tensor scaled(const Tensor& tensor) const;

    c10d::ReduceOp op_;
    c10d::ReduceOp::RedOpType type_;
    c10::ScalarType dtype_;      // of real(tensor)
    c10::ScalarType exchanged_;  // of what travels
    int ranks_;
};

}  // namespace anymps::distributed
