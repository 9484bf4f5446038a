// Whether operators with an autograd function of their own may take a call, or leave it to PyTorch's way.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace anymps::ops {

// No subclass, transform or lazy negation has a say; tensors of inference mode are plain, too.
inline bool is_plain(const at::Tensor& t) {
    using enum c10::DispatchKey;
    constexpr c10::DispatchKeySet kInference({MPS, AutocastMPS});
    constexpr c10::DispatchKeySet kPlain({MPS, AutogradMPS, ADInplaceOrView, AutocastMPS});
    return t.key_set() == kPlain || t.key_set() == kInference;
}

// ... nor a mode, but for inference mode.
inline bool are_modes_off() {
    const auto included = c10::impl::tls_local_dispatch_key_set().included_;
    return included.add(c10::DispatchKey::ADInplaceOrView) == c10::default_included_set;
}

inline bool has_forward_gradient(const at::Tensor& t) {
    return t._fw_grad(0).defined();
}

}  // namespace anymps::ops
