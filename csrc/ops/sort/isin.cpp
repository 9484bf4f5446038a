// isin: which elements occur in a set of others.
#include <anymps/ops/sort/isin_ops.h>
#include <anymps/shaders/sort/isin.h>

#include <ATen/ScalarOps.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/isin.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/sort.h>

#include "kernels/check_dtype.h"
#include "kernels/flat_grid.h"

namespace anymps::ops {
namespace {

constexpr int64_t kLinear = 16;  // up to so many are compared one by one, more are sorted and halved

// out: bool, of the shape of elements. No NaN is in any set.
void isin(const Tensor& elements, const Tensor& set, bool invert, const Tensor& out) {
    if (elements.numel() == 0) return;
    const auto type = at::result_type(elements, set);
    const Tensor from = elements.to(type).contiguous();
    kernels::check_real(from.scalar_type(), "isin_default_cpu");
    Tensor members = set.to(type).contiguous().view({-1});
    // Kernels read uint64 as int64, whose order is another one.
    const bool sorted = members.numel() > kLinear && type != at::kUInt64;
    if (sorted) members = std::get<0>(members.sort());
    const Tensor to = out.is_contiguous() ? out : at::empty_like(out, at::MemoryFormat::Contiguous);
    const shaders::isin::IsinArgs args{.out = kernels::address(to),
                                       .elements = kernels::address(from),
                                       .set = kernels::address(members),
                                       .count = static_cast<uint64_t>(from.numel()),
                                       .set_count = static_cast<uint64_t>(members.numel()),
                                       .sorted = sorted,
                                       .invert = invert};
    constexpr uint32_t kWorkgroup = 64;
    (at::isFloatingType(type) ? shaders::isin::isin_f32 : shaders::isin::isin_i64)
        .call({.workgroup = kWorkgroup, .type = kernels::code(type)})
        .read(from)
        .read(members)
        .write(to)
        .dispatch(args, kernels::flat_grid(args.count, kWorkgroup));
    if (!to.is_same(out)) out.copy_(to);
}

}  // namespace

ANYMPS_ROW(isin_Tensor_Tensor_out, isin(elements, test_elements, invert, out))

TORCH_IMPL_FUNC(isin_Tensor_Scalar_out)
(const Tensor& elements, const Scalar& test_element, bool, bool invert, const Tensor& out) {
    if (invert) {
        at::ne_out(const_cast<Tensor&>(out), elements, test_element);
    } else {
        at::eq_out(const_cast<Tensor&>(out), elements, test_element);
    }
}

TORCH_IMPL_FUNC(isin_Scalar_Tensor_out)
(const Scalar& element, const Tensor& test_elements, bool assume_unique, bool invert, const Tensor& out) {
    Tensor wrapped = at::scalar_to_tensor(element);
    wrapped.unsafeGetTensorImpl()->set_wrapped_number(true);  // a number does not widen a tensor's type
    wrapped = wrapped.to(test_elements.options().dtype(at::result_type(wrapped, test_elements)));
    at::isin_out(const_cast<Tensor&>(out), wrapped, test_elements, assume_unique,
                 invert);  // gives out its shape, []
}

}  // namespace anymps::ops
