// Copies between every pair of device, dtype and layout.
#include <anymps/kernels/pointwise_kernels.h>
#include <anymps/ops/copy_ops.h>

#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorIterator.h>
#include <ATen/ops/_conj_physical.h>
#include <ATen/ops/_lazy_clone_native.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/real.h>
#include <ATen/ops/select.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/impl/COW.h>

#include "kernels/float8.h"
#include "kernels/kernel_call.h"
#include "kernels/pointwise_launcher.h"
#include "runtime/allocator.h"
#include "runtime/command_encoder.h"

namespace anymps::ops {
namespace {

// The transfer converts on the side that leaves fewer bytes to move.
c10::ScalarType transfer_dtype(const Tensor& dst, const Tensor& src) {
    const auto device_holds = [](c10::ScalarType t) { return t != at::kDouble && t != at::kComplexDouble; };
    if (!device_holds(src.scalar_type())) return dst.scalar_type();
    if (!device_holds(dst.scalar_type())) return src.scalar_type();
    return src.element_size() < dst.element_size() ? src.scalar_type() : dst.scalar_type();
}

// A tensor of the same values whose memory has no gaps and no overlaps.
Tensor dense(const Tensor& tensor) {
    return tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous();
}

Tensor resolved(const Tensor& tensor) {
    return tensor.resolve_conj().resolve_neg();
}

// The same memory without the bits that say that its elements are conjugates or negatives.
Tensor stored(const Tensor& tensor) {
    const Tensor plain = tensor.is_conj() ? tensor.conj() : tensor;
    return plain.is_neg() ? at::_neg_view(plain) : plain;
}

// To or from floats of 8 bits, as bytes on their side; between two formats by way of floats.
void convert_float8(const Tensor& self, const Tensor& src) {
    const bool narrows = kernels::is_float8(self.scalar_type());
    if (narrows && kernels::is_float8(src.scalar_type())) return convert_float8(self, src.to(at::kFloat));
    Tensor to = narrows ? self.view(at::kByte) : self;
    const Tensor from = narrows ? src : src.view(at::kByte);
    auto iter = at::TensorIteratorConfig()
                    .set_check_mem_overlap(false)
                    .add_output(to)
                    .add_const_input(from)
                    .resize_outputs(false)
                    .check_all_same_dtype(false)
                    .build();
    if (narrows)
        kernels::pointwise(iter, kernels::rows::float8_from_float,
                           {kernels::float8_format(self.scalar_type())}, at::kFloat);
    else
        kernels::pointwise(iter, kernels::rows::float8_to_float, {kernels::float8_format(src.scalar_type())},
                           at::kFloat);
}

void copy_on_device(const Tensor& self, const Tensor& src, at::TensorIterator& iter) {
    const bool has_float8 = kernels::is_float8(self.scalar_type()) || kernels::is_float8(src.scalar_type());
    if (has_float8 && self.scalar_type() != src.scalar_type() && !self.is_complex() && !src.is_complex()) {
        convert_float8(self, src);
    } else if (has_float8 && self.is_complex()) {
        Tensor to = self;
        to.copy_(src.to(at::kFloat));
        return;
    } else if (src.is_complex() && self.is_complex()) {
        // Bits of conjugation and negation are settled below: copy the stored pairs.
        Tensor to = at::view_as_real(self.is_conj() ? self.conj() : self);
        const Tensor from = at::view_as_real(src.is_conj() ? src.conj() : src);
        auto pairs = at::TensorIteratorConfig()
                         .set_check_mem_overlap(true)
                         .add_output(to)
                         .add_const_input(from)
                         .resize_outputs(false)
                         .check_all_same_dtype(false)
                         .build();
        kernels::pointwise_copy(pairs);
    } else if (self.is_complex() && (self.is_conj() || src.is_neg())) {
        Tensor pairs = at::view_as_real(self.is_conj() ? self.conj() : self);
        at::select(pairs, -1, 1).zero_();
        at::select(pairs, -1, 0).copy_(src);
        return;
    } else if (self.scalar_type() == at::kBool && src.is_complex()) {
        // Either part counts, whatever the bits of conjugation and negation say.
        kernels::pointwise_copy(iter);
        return;
    } else if (src.is_complex()) {
        TORCH_WARN_ONCE("Casting complex values to real discards the imaginary part");
        Tensor to = self;
        to.copy_(at::real(src));
        return;
    } else {
        kernels::pointwise_copy(iter);
    }
    // On the elements as they are stored: for a tensor with bits PyTorch would copy, and come back here.
    if (self.is_conj() != src.is_conj()) stored(self).conj_physical_();
    if (self.is_neg() != src.is_neg()) stored(self).neg_();
}

void copy_from_host(const Tensor& self, const Tensor& src) {
    const auto dtype = transfer_dtype(self, src);
    Tensor host = resolved(src).to(dtype).expand(self.sizes());
    const bool direct = self.scalar_type() == dtype && self.is_non_overlapping_and_dense() &&
                        !self.is_conj() && !self.is_neg();
    Tensor device;
    if (direct) {
        device = self;
        if (host.strides() != self.strides()) {
            host = at::empty_strided(self.sizes(), self.strides(), host.options()).copy_(host);
        }
    } else {
        host = dense(host);
        device = at::empty_strided(host.sizes(), host.strides(), self.options().dtype(dtype));
    }
    runtime::encoder().upload(kernels::address(device), host.const_data_ptr(), host.nbytes());
    if (!direct) {
        Tensor to = self;
        to.copy_(device);
    }
}

void copy_to_host(const Tensor& self, const Tensor& src) {
    const auto dtype = transfer_dtype(self, src);
    const Tensor device = dense(resolved(src).to(dtype));
    const bool direct = self.scalar_type() == dtype && self.strides() == device.strides() &&
                        self.sizes() == device.sizes() && !self.is_conj() && !self.is_neg();
    const Tensor host =
        direct ? self : at::empty_strided(device.sizes(), device.strides(), self.options().dtype(dtype));
    runtime::encoder().download(host.mutable_data_ptr(), kernels::address(device), device.nbytes());
    if (!direct) {
        Tensor to = self;
        to.copy_(host);
    }
}

}  // namespace

Tensor& ANYMPS_FUNC(copy_)(Tensor& self, const Tensor& src, bool non_blocking) {
    TORCH_CHECK(self.defined(), "self is undefined");
    TORCH_CHECK(src.defined(), "src is undefined");
    TORCH_CHECK_NOT_IMPLEMENTED(!src.is_meta(), "Cannot copy out of meta tensor; no data!");
    if (self.is_same(src) || self.is_meta()) return self;
    // The iterator checks shapes and overlaps with the CPU's words, also where it is not iterated.
    auto iter = at::TensorIteratorConfig()
                    .set_check_mem_overlap(true)
                    .add_output(self)
                    .add_const_input(src)
                    .resize_outputs(false)
                    .check_all_same_dtype(false)
                    .check_all_same_device(false)
                    .build();
    if (iter.numel() == 0) return self;
    if (src._is_zerotensor()) return self.zero_();
    if (!src.is_mps()) {
        copy_from_host(self, src);
    } else if (!self.is_mps()) {
        copy_to_host(self, src);
    } else {
        copy_on_device(self, src, iter);
    }
    return self;
}

// Of a tensor that is not quantized: itself in float32.
ANYMPS_ROW(dequantize_self, self.to(at::kFloat))

Tensor ANYMPS_FUNC(_lazy_clone)(const Tensor& self) {
    c10::StorageImpl& storage = *self.storage().unsafeGetStorageImpl();
    const bool possible = c10::impl::cow::is_cow_data_ptr(storage.data_ptr()) ||
                          runtime::allocator().simplify(storage._mutable_data_ptr_no_checks());
    return possible ? at::native::_lazy_clone(self) : self.clone();
}

Tensor ANYMPS_FUNC(_copy_from)(const Tensor& self, const Tensor& dst, bool non_blocking) {
    Tensor to = dst;
    return to.copy_(self, non_blocking);
}

Tensor& ANYMPS_FUNC(narrow_copy_out)(const Tensor& self, int64_t dim, int64_t start, int64_t length,
                                     Tensor& out) {
    const Tensor part = self.narrow(dim, start, length);
    at::native::resize_output(out, part.sizes());
    return out.copy_(part);
}

Tensor ANYMPS_FUNC(_copy_from_and_resize)(const Tensor& self, const Tensor& dst) {
    Tensor to = dst;
    to.resize_(self.sizes());
    return to.copy_(self);
}

}  // namespace anymps::ops
