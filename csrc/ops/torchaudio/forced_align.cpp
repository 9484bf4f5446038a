// torchaudio::forced_align, for when torchaudio is there: its schemas are its own, only the kernels are ours.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <anymps/shaders/torchaudio/forced_align.h>
#include <torch/library.h>

#include "kernels/launch_config.h"

namespace anymps::ops {
namespace {

using at::Tensor;

namespace shader = shaders::forced_align;

// In torchaudio's words. Reads the lengths and how many labels repeat the one before.
void check(const Tensor& log_probs, const Tensor& targets, const Tensor& input_lengths,
           const Tensor& target_lengths, int64_t blank) {
    TORCH_CHECK(targets.is_mps() && input_lengths.is_mps() && target_lengths.is_mps(),
                "log_probs and targets need to be on the same device");
    TORCH_CHECK(log_probs.scalar_type() == at::kFloat || log_probs.scalar_type() == at::kHalf,
                "log_probs must be float64, float32 or float16 (half) type");
    TORCH_CHECK(targets.scalar_type() == at::kInt || targets.scalar_type() == at::kLong,
                "targets must be int32 or int64 type");
    TORCH_CHECK(log_probs.is_contiguous(), "log_probs must be contiguous");
    TORCH_CHECK(targets.is_contiguous(), "targets must be contiguous");
    TORCH_CHECK(log_probs.dim() == 3, "log_probs must be 3-D (batch_size, input length, num classes)");
    TORCH_CHECK(targets.dim() == 2, "targets must be 2-D (batch_size, target length,)");
    TORCH_CHECK(input_lengths.dim() == 1, "input_lengths must be 1-D (batch_size,)");
    TORCH_CHECK(target_lengths.dim() == 1, "target_lengths must be 1-D (batch_size,)");
    TORCH_CHECK(log_probs.size(0) == 1,
                "The batch dimension for log_probs must be 1 at the current version.");
    TORCH_CHECK(targets.size(0) == 1, "The batch dimension for targets must be 1 at the current version.");
    TORCH_CHECK(blank >= 0 && blank < log_probs.size(-1), "blank must be within [0, num classes)");
    TORCH_CHECK(log_probs.size(1) == input_lengths.max().item<int64_t>(), "input length mismatch");
    TORCH_CHECK(targets.size(1) == target_lengths.max().item<int64_t>(), "target length mismatch");
    const int64_t time = log_probs.size(1), labels = targets.size(1);
    const int64_t repeats =
        labels < 2 ? 0 : targets.slice(1, 1).eq(targets.slice(1, 0, -1)).sum().item<int64_t>();
    TORCH_CHECK(time >= labels + repeats,
                "targets length is too long for CTC. Found log_probs length: ", time,
                ", targets length: ", labels, ", and number of repeats: ", repeats);
}

// log_probs [1, time, classes], targets [1, labels] -> (the label of every frame, log_probs). Sums are
// floats, also of halves.
std::tuple<Tensor, Tensor> forced_align(const Tensor& log_probs, const Tensor& targets,
                                        const Tensor& input_lengths, const Tensor& target_lengths,
                                        int64_t blank) {
    check(log_probs, targets, input_lengths, target_lengths, blank);
    const int64_t time = log_probs.size(1), states = 2 * targets.size(1) + 1;
    const Tensor path = at::empty({1, time}, targets.options());
    if (time == 0) return {path, log_probs};
    const kernels::LaunchConfig& launch_config = kernels::launch_config();
    const bool serial = launch_config.software || states > int64_t{shader::kMaxShared};
    Tensor rows;
    if (serial) rows = at::empty({2, states}, log_probs.options().dtype(at::kFloat));
    const Tensor steps = at::empty({time, states}, log_probs.options().dtype(at::kByte));
    const auto error = runtime::encoder().error_slot("forced_align");
    const shader::AlignArgs args{.log_probs = kernels::address(log_probs),
                                 .targets = kernels::address(targets),
                                 .rows = kernels::address_or_0(rows),
                                 .steps = kernels::address(steps),
                                 .path = kernels::address(path),
                                 .error = error.address,
                                 .error_code = error.code,
                                 .time = static_cast<uint32_t>(time),
                                 .classes = static_cast<uint32_t>(log_probs.size(2)),
                                 .states = static_cast<uint32_t>(states),
                                 .blank = static_cast<uint32_t>(blank)};
    const uint32_t type = kernels::code(log_probs.scalar_type()),
                   target = kernels::code(targets.scalar_type());
    shader::forced_align_paths
        .call({.workgroup = serial ? 1 : launch_config.workgroup,
               .type = type,
               .target_type = target,
               .serial = serial})
        .read(log_probs)
        .read(targets)
        .write(rows)
        .write(steps)
        .write(path)
        .dispatch(args, kernels::Grid{});
    shader::forced_align_back.call({.workgroup = 1, .type = type, .target_type = target, .serial = serial})
        .read(targets)
        .read(steps)
        .write(path)
        .dispatch(args, kernels::Grid{});
    return {path, log_probs};
}

TORCH_LIBRARY_IMPL(torchaudio, MPS, m) {
    m.impl("forced_align", TORCH_FN(forced_align));
}

}  // namespace
}  // namespace anymps::ops
