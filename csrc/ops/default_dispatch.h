// Kernels of ours at autograd's keys and for composite operators: plain tensors alone. Fake, functional and
// batched tensors, subclasses, modes, symbolic sizes and forward gradients go PyTorch's own way.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <optional>
#include <type_traits>
#include <utility>

namespace anymps::ops {

// No subclass, transform or lazy negation has a say; tensors of inference mode are plain, too.
inline bool has_default_dispatch(const at::Tensor& t) {
    using enum c10::DispatchKey;
    constexpr c10::DispatchKeySet kInference({MPS, AutocastMPS});
    constexpr c10::DispatchKeySet kPlain({MPS, AutogradMPS, ADInplaceOrView, AutocastMPS});
    return t.key_set() == kPlain || t.key_set() == kInference;
}

// ... nor a mode, but for inference mode.
inline bool no_mode_is_active() {
    const auto included = c10::impl::tls_local_dispatch_key_set().included_;
    return included.add(c10::DispatchKey::ADInplaceOrView) == c10::default_included_set;
}

inline bool has_forward_gradient(const at::Tensor& t) {
    return t._fw_grad(0).defined();
}

// The same of an operator's arguments: undefined tensors and what is no tensor are plain, symbols are not.
inline bool is_default_argument(const at::Tensor& t) {
    return !t.defined() || (has_default_dispatch(t) && !has_forward_gradient(t));
}
inline bool is_default_argument(const std::optional<at::Tensor>& t) {
    return !t.has_value() || is_default_argument(*t);
}
inline bool is_default_argument(at::IntArrayRef) {
    return true;
}
inline bool is_default_argument(const c10::SymInt& n) {
    return !n.is_symbolic();
}
template <class T>
requires(std::is_arithmetic_v<T> ||
         std::is_same_v<T, std::optional<double>>) bool is_default_argument(const T&) {
    return true;
}

// The kernel of an operator: kOwn, whose first argument may be the call's dispatch keys, where the call is
// plain; else kComposite, which is PyTorch's.
template <auto kOwn, auto kComposite>
struct DefaultDispatchOr;

template <auto kOwn, class Result, class... Args, Result (*kComposite)(Args...)>
struct DefaultDispatchOr<kOwn, kComposite> {
    static Result call(c10::DispatchKeySet keys, Args... args) {
        if (!no_mode_is_active() || !(... && is_default_argument(args)))
            return kComposite(std::forward<Args>(args)...);
        if constexpr (std::is_invocable_v<decltype(kOwn), c10::DispatchKeySet, Args...>) {
            return kOwn(keys, std::forward<Args>(args)...);
        } else {
            return kOwn(std::forward<Args>(args)...);
        }
    }
};

// While it lives kernels of PyTorch's own are replaced without its warning, which comes once a process and
// for all operators.
class QuietReplacement {
    struct Silent : c10::WarningHandler {
        void process(const c10::Warning&) override {}
    };
    Silent silent_;
    c10::WarningUtils::WarningHandlerGuard handler_{&silent_};
    c10::WarningUtils::WarnAlways once_remains_;  // for whoever replaces the next one
};

}  // namespace anymps::ops
