// torchaudio::rnnt_loss_forward, for when torchaudio is there: its schemas are its own, only the kernels are
// ours.
#include <anymps/ops/reduction_rows.h>
#include <anymps/shaders/torchaudio/rnnt_loss.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <limits>

#include "kernels/flat_grid.h"
#include "kernels/reduction_launcher.h"

namespace anymps::ops {
namespace {

using at::Tensor;

namespace shader = shaders::rnnt_loss;

// In torchaudio's words. Reads the longest lengths.
void check(const Tensor& logits, const Tensor& targets, const Tensor& logit_lengths,
           const Tensor& target_lengths, int64_t blank) {
    const auto named = {std::pair("targets", &targets), std::pair("logit_lengths", &logit_lengths),
                        std::pair("target_lengths", &target_lengths)};
    for (const auto& [name, t] : named)
        TORCH_CHECK(t->is_mps(), "logits and ", name, " must be on the same device");
    TORCH_CHECK(logits.scalar_type() == at::kFloat || logits.scalar_type() == at::kHalf,
                "logits must be float32 or float16 (half) type");
    for (const auto& [name, t] : named)
        TORCH_CHECK(t->scalar_type() == at::kInt, name, " must be int32 type");
    TORCH_CHECK(logits.is_contiguous(), "logits must be contiguous");
    for (const auto& [name, t] : named) TORCH_CHECK(t->is_contiguous(), name, " must be contiguous");
    TORCH_CHECK(logits.dim() == 4, "logits must be 4-D (batch, time, target, class)");
    TORCH_CHECK(targets.dim() == 2, "targets must be 2-D (batch, max target length)");
    TORCH_CHECK(logit_lengths.dim() == 1, "logit_lengths must be 1-D");
    TORCH_CHECK(target_lengths.dim() == 1, "target_lengths must be 1-D");
    TORCH_CHECK(logit_lengths.size(0) == logits.size(0),
                "batch dimension mismatch between logits and logit_lengths");
    TORCH_CHECK(target_lengths.size(0) == logits.size(0),
                "batch dimension mismatch between logits and target_lengths");
    TORCH_CHECK(targets.size(0) == logits.size(0), "batch dimension mismatch between logits and targets");
    TORCH_CHECK(blank >= 0 && blank < logits.size(-1), "blank must be within [0, logits.shape[-1])");
    TORCH_CHECK(logits.size(1) == logit_lengths.max().item<int32_t>(), "input length mismatch");
    TORCH_CHECK(logits.size(2) == target_lengths.max().item<int32_t>() + 1, "output length mismatch");
    TORCH_CHECK(targets.size(1) + 1 == logits.size(2), "target length mismatch");
}

// logits [batch, frames, places, classes], targets [batch, places - 1], lengths [batch] -> the costs [batch]
// and their gradients by the logits, both of the logits' dtype. fused_log_softmax: the logits are no log
// probabilities yet.
std::tuple<Tensor, Tensor> rnnt_loss_forward(const Tensor& logits, const Tensor& targets,
                                             const Tensor& logit_lengths, const Tensor& target_lengths,
                                             int64_t blank, double clamp, bool fused_log_softmax) {
    check(logits, targets, logit_lengths, target_lengths, blank);
    const auto floats = logits.options().dtype(at::kFloat);
    const at::IntArrayRef positions = logits.sizes().slice(0, 3);
    Tensor log_sums;
    if (fused_log_softmax) {
        log_sums = at::empty(positions, floats);
        kernels::reduce(rows::logsumexp, logits, kernels::dim_mask(logits, int64_t{3}), {log_sums});
    }
    const Tensor alphas = at::empty(positions, floats), betas = at::empty(positions, floats);
    const Tensor costs = at::empty({logits.size(0)}, logits.options()), gradients = at::empty_like(logits);
    const auto error = runtime::encoder().error_slot("rnnt_loss");
    const shader::RnntArgs args{.logits = kernels::address(logits),
                                .targets = kernels::address(targets),
                                .frame_counts = kernels::address(logit_lengths),
                                .target_counts = kernels::address(target_lengths),
                                .log_sums = kernels::address_or_0(log_sums),
                                .alphas = kernels::address(alphas),
                                .betas = kernels::address(betas),
                                .costs = kernels::address(costs),
                                .gradients = kernels::address(gradients),
                                .error = error.address,
                                .error_code = error.code,
                                .batch = static_cast<uint32_t>(logits.size(0)),
                                .frames = static_cast<uint32_t>(logits.size(1)),
                                .positions = static_cast<uint32_t>(logits.size(2)),
                                .classes = static_cast<uint32_t>(logits.size(3)),
                                .blank = static_cast<uint32_t>(blank),
                                .clamp = static_cast<float>(clamp)};
    const kernels::LaunchConfig& launch_config = kernels::launch_config();
    const bool serial = launch_config.software || logits.size(2) > int64_t{shader::kMaxShared};
    const bool wide = logits.numel() > std::numeric_limits<uint32_t>::max();
    const uint32_t type = kernels::code(logits.scalar_type());
    const auto prepared = [&](const shader::RnntKernel& kernel, uint32_t workgroup) {
        auto call = kernel.call({.workgroup = workgroup, .type = type, .serial = serial, .wide = wide});
        call.read(logits).read(targets).read(logit_lengths).read(target_lengths).read(log_sums);
        return call;
    };
    prepared(shader::rnnt_loss_paths, serial ? 1 : launch_config.workgroup)
        .write(alphas)
        .write(betas)
        .write(costs)
        .dispatch(args, kernels::Grid::linear(2 * args.batch));
    prepared(shader::rnnt_loss_gradient, kernels::flat_workgroup())
        .read(alphas)
        .read(betas)
        .write(gradients)
        .dispatch(args, kernels::flat_grid(logits.numel()));
    return {costs, gradients};
}

TORCH_LIBRARY_IMPL(torchaudio, MPS, m) {
    m.impl("rnnt_loss_forward", TORCH_FN(rnnt_loss_forward));
}

}  // namespace
}  // namespace anymps::ops
