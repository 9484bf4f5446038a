// ctc_loss and its gradient.
#include <anymps/ops/loss/ctc_loss_ops.h>
#include <anymps/shaders/loss/ctc_loss.h>

#include <ATen/TensorUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <array>
#include <limits>

#include "kernels/check_dtype.h"
#include "kernels/flat_grid.h"
#include "ops/same_device.h"
#include "ops/same_dtype.h"

namespace anymps::ops {
namespace {

namespace shader = shaders::ctc_loss;
using shader::CtcArgs;

void copy_strides(const Tensor& tensor, std::array<int64_t, 3>& strides) {
    std::copy(tensor.strides().begin(), tensor.strides().end(), strides.begin());
}

// The checked arguments of both passes.
class Sequences {
  public:
    Sequences(const Tensor& log_probs, const Tensor& targets, IntArrayRef input_lengths,
              IntArrayRef target_lengths, int64_t blank);

    int64_t states() const { return 2 * max_target_ + 1; }
    CtcArgs args(const Tensor& log_alpha, const Tensor& losses) const;
    // A workgroup for each sequence: of one thread where the states do not fit into shared memory.
    void run(const shader::CtcKernel& kernel, const CtcArgs& args, const Tensor& written,
             const Tensor& losses) const;
    const Tensor& lengths() const { return lengths_; }
    uint32_t target_type() const { return kernels::code(targets_.scalar_type()); }

  private:
    const Tensor &log_probs_, &targets_;
    Tensor lengths_;
    int64_t blank_, max_target_ = 0;
};

Sequences::Sequences(const Tensor& log_probs, const Tensor& targets, IntArrayRef input_lengths,
                     IntArrayRef target_lengths, int64_t blank)
    : log_probs_(log_probs), targets_(targets), blank_(blank) {
    const char* where = "ctc_loss_allocate_outputs";
    const at::TensorArg probs_arg(log_probs, "log_probs", 1), targets_arg(targets, "targets", 2);
    check_same_device("_ctc_loss", {{"log_probs", log_probs}, {"targets", targets}});
    TORCH_CHECK(log_probs.numel() > 0, "log_probs tensor must not be empty");
    kernels::check_implemented(log_probs.scalar_type() == at::kFloat, log_probs.scalar_type(),
                               "ctc_loss_cpu");
    at::checkScalarType(where, targets_arg, targets.scalar_type() == at::kLong ? at::kLong : at::kInt);
    at::checkDim(where, probs_arg, 3);
    at::checkDimRange(where, targets_arg, 1, 3);
    const int64_t batch = log_probs.size(1), time = log_probs.size(0);
    TORCH_CHECK(0 <= blank && blank < log_probs.size(2), "blank must be in label range");
    TORCH_CHECK(static_cast<int64_t>(input_lengths.size()) == batch,
                "input_lengths must be of size batch_size");
    TORCH_CHECK(static_cast<int64_t>(target_lengths.size()) == batch,
                "target_lengths must be of size batch_size");
    std::vector<int64_t> host(3 * batch);
    int64_t offset = 0;
    for (int64_t b = 0; b < batch; ++b) {
        TORCH_CHECK(target_lengths[b] >= 0,
                    "Expected target_lengths to have value at least 0, but got value ", target_lengths[b],
                    " (while checking arguments for ", where, ")");
        host[b] = input_lengths[b];
        host[batch + b] = target_lengths[b];
        host[2 * batch + b] = targets.dim() == 1 ? offset : b * targets.stride(0);
        offset += targets.dim() == 1 ? target_lengths[b] * targets.stride(0) : 0;
        max_target_ = std::max(max_target_, target_lengths[b]);
    }
    if (targets.dim() == 1) {
        int64_t total = 0;
        for (const int64_t length : target_lengths) total += length;
        at::checkSize(where, targets_arg, 0, total);
    } else {
        at::checkSize(where, targets_arg, 0, batch);
        TORCH_CHECK(targets.size(1) >= max_target_, "Expected tensor to have size at least ", max_target_,
                    " at dimension 1, but got size ", targets.size(1), " for ", targets_arg,
                    " (while checking arguments for ", where, ")");
    }
    for (const int64_t length : input_lengths) {
        TORCH_CHECK(length >= 0, "Expected input_lengths to have value at least 0, but got value ", length,
                    " (while checking arguments for ", where, ")");
        TORCH_CHECK(length <= time, "Expected input_lengths to have value at most ", time, ", but got value ",
                    length, " (while checking arguments for ", where, ")");
    }
    TORCH_CHECK(batch * time <= std::numeric_limits<uint32_t>::max(), "ctc_loss on MPS: ", batch * time,
                " steps are more than 2^32 - 1");
    lengths_ = at::tensor(host, at::kLong).to(log_probs.device());
}

CtcArgs Sequences::args(const Tensor& log_alpha, const Tensor& losses) const {
    const auto error = runtime::encoder().error_slot("ctc_loss");
    CtcArgs args{};
    args.log_probs = kernels::address(log_probs_);
    args.targets = kernels::address(targets_);
    args.lengths = kernels::address(lengths_);
    args.log_alpha = kernels::address(log_alpha);
    args.losses = kernels::address(losses);
    args.error = error.address;
    args.error_code = error.code;
    copy_strides(log_probs_, args.probs_strides);
    args.target_stride = targets_.stride(-1);
    args.batch = static_cast<uint32_t>(log_probs_.size(1));
    args.time = static_cast<uint32_t>(log_probs_.size(0));
    args.states = static_cast<uint32_t>(log_alpha.size(2));
    args.classes = static_cast<uint32_t>(log_probs_.size(2));
    args.blank = static_cast<uint32_t>(blank_);
    return args;
}

void Sequences::run(const shader::CtcKernel& kernel, const CtcArgs& args, const Tensor& written,
                    const Tensor& losses) const {
    const kernels::LaunchConfig& launch_config = kernels::launch_config();
    const bool serial = launch_config.software || states() > int64_t{shader::kMaxShared};
    auto call = kernel.call(
        {.workgroup = serial ? 1 : launch_config.workgroup, .target_type = target_type(), .serial = serial});
    call.read(log_probs_).read(targets_).read(lengths_).write(written);
    if (losses.defined()) call.write(losses);
    call.dispatch(args, kernels::Grid::linear(args.batch));
}

std::vector<int64_t> on_host(const Tensor& lengths, const char* name) {
    TORCH_CHECK(at::isIntegralType(lengths.scalar_type(), /*includeBool=*/false), name, " must be integral");
    const Tensor host = lengths.to(at::kCPU, at::kLong).contiguous();
    return {host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel()};
}

}  // namespace

// log_probs f32 [time, batch, classes]; targets [batch, n] or all of them in a row -> (losses [batch],
// log_alpha [batch, time, 2 n + 1]). A target out of range raises at the next synchronization.
std::tuple<Tensor, Tensor> ANYMPS_FUNC(_ctc_loss)(const Tensor& log_probs, const Tensor& targets,
                                                  IntArrayRef input_lengths, IntArrayRef target_lengths,
                                                  int64_t blank, bool zero_infinity) {
    const Sequences sequences(log_probs, targets, input_lengths, target_lengths, blank);
    const Tensor losses = at::empty({log_probs.size(1)}, log_probs.options());
    const Tensor log_alpha =
        at::empty({log_probs.size(1), log_probs.size(0), sequences.states()}, log_probs.options());
    sequences.run(shader::ctc_loss_alpha, sequences.args(log_alpha, losses), log_alpha, losses);
    return {losses, log_alpha};
}

ANYMPS_ROW(_ctc_loss_Tensor, _ctc_loss(log_probs, targets, on_host(input_lengths, "input_lengths"),
                                       on_host(target_lengths, "target_lengths"), blank, zero_infinity))

Tensor ANYMPS_FUNC(_ctc_loss_backward)(const Tensor& grad, const Tensor& log_probs, const Tensor& targets,
                                       IntArrayRef input_lengths, IntArrayRef target_lengths,
                                       const Tensor& neg_log_likelihood, const Tensor& log_alpha,
                                       int64_t blank, bool zero_infinity) {
    check_same_dtype_as(log_probs, grad);
    check_same_device("_ctc_loss_backward", {{"grad", grad},
                                             {"log_probs", log_probs},
                                             {"neg_log_likelihood", neg_log_likelihood},
                                             {"log_alpha", log_alpha}});
    const Sequences sequences(log_probs, targets, input_lengths, target_lengths, blank);
    const Tensor gradient =
        at::full(log_probs.sizes(), -std::numeric_limits<float>::infinity(), log_probs.options());
    const Tensor log_beta = at::empty(log_alpha.sizes(), log_alpha.options());
    CtcArgs args = sequences.args(log_alpha, neg_log_likelihood);
    args.log_beta = kernels::address(log_beta);
    args.gradient = kernels::address(gradient);
    copy_strides(gradient, args.gradient_strides);
    args.grad_output = kernels::address(grad);
    args.grad_output_stride = grad.dim() == 0 ? 0 : grad.stride(0);
    args.zero_infinity = zero_infinity;
    sequences.run(shader::ctc_loss_beta, args, log_beta, Tensor());
    const uint32_t workgroup = kernels::flat_workgroup();
    const auto run = [&](const shader::CtcKernel& kernel, uint64_t threads) {
        const bool wide = threads > std::numeric_limits<uint32_t>::max();
        kernel.call({.workgroup = workgroup, .target_type = sequences.target_type(), .wide = wide})
            .read(log_probs)
            .read(targets)
            .read(sequences.lengths())
            .read(log_alpha)
            .read(log_beta)
            .read(neg_log_likelihood)
            .read(grad)
            .write(gradient)
            .dispatch(args, kernels::flat_grid(threads));
    };
    run(shader::ctc_loss_collect, uint64_t{args.batch} * args.time);
    run(shader::ctc_loss_gradient, static_cast<uint64_t>(gradient.numel()));
    return gradient;
}

ANYMPS_ROW(_ctc_loss_backward_Tensor,
           _ctc_loss_backward(grad, log_probs, targets, on_host(input_lengths, "input_lengths"),
                              on_host(target_lengths, "target_lengths"), neg_log_likelihood, log_alpha, blank,
                              zero_infinity))

}  // namespace anymps::ops
