#include "ops/norm/norm_source.h"

#include <ATen/ops/batch_norm.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/group_norm.h>
#include <c10/util/intrusive_ptr.h>

#include <array>
#include <vector>

#include "runtime/command_encoder.h"

namespace anymps::ops {

namespace {

using at::Tensor;
using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

struct LastNorm {
    std::optional<Weak> result;
    uint64_t calls = 0;  // of the encoder, up to the norm's own
    std::vector<Weak> tensors;
    NormSource rest;  // without tensors
};

thread_local LastNorm last_norm;

std::array<Tensor*, 5> tensors_of(NormSource& source) {
    return {&source.input, &source.weight, &source.bias, &source.mean, &source.deviation};
}

}  // namespace

void remember_norm(const Tensor& result, const NormSource& source) {
    last_norm.result.emplace(result.getIntrusivePtr());
    last_norm.calls = runtime::encoder().calls();
    last_norm.tensors.clear();
    last_norm.rest = source;
    for (Tensor* tensor : tensors_of(last_norm.rest)) {
        last_norm.tensors.emplace_back(tensor->getIntrusivePtr());
        tensor->reset();
    }
}

std::optional<NormSource> source_of_norm(const Tensor& result) {
    if (!last_norm.result || last_norm.result->expired() ||
        last_norm.result->_unsafe_get_target() != result.unsafeGetTensorImpl() || result._version() != 0 ||
        last_norm.calls != runtime::encoder().calls()) {
        return std::nullopt;
    }
    NormSource source = last_norm.rest;
    for (size_t i = 0; Tensor * tensor : tensors_of(source)) {
        const Weak& weak = last_norm.tensors[i++];
        if (weak._unsafe_get_target() == c10::UndefinedTensorImpl::singleton()) continue;
        *tensor = Tensor(weak.lock());
        if (!tensor->defined()) return std::nullopt;
    }
    return source;
}

Tensor norm_again(const NormSource& s) {
    const Tensor input = s.input.to(at::kFloat);
    if (s.groups != 0) return at::group_norm(input, s.groups, s.weight, s.bias, s.eps, false);
    const Tensor mean = s.training ? Tensor() : s.mean, variance = s.training ? Tensor() : s.deviation;
    return at::batch_norm(input, s.weight, s.bias, mean, variance, s.training, 0, s.eps, false);
}

Tensor norm_activation_backward(const NormSource& s, const Tensor& grad_any,
                                const kernels::ChannelActivation& activation) {
    const Tensor out = at::empty_like(s.input, s.input.options().dtype(at::kFloat));
    const Tensor grad =
        grad_any.strides() == out.strides() ? grad_any : Tensor(at::empty_like(out)).copy_(grad_any);
    const int64_t channels = s.input.size(1);
    kernels::ChannelNorm norm{channels, s.inner, s.groups != 0 ? channels / s.groups : 0};
    norm.mean = s.mean;
    norm.deviation = s.deviation;
    norm.variance = !s.training;
    norm.eps = s.eps;
    norm.weight = s.weight;
    norm.bias = s.bias;
    kernels::channel_norm_activation_backward(norm, activation, s.input, grad, out);
    return out;
}

}  // namespace anymps::ops
