// Convolutions on matrix units without shared memory: shaders/conv_nosmem.slang.
#pragma once

#include <span>
#include <vector>

#include "ops/conv/conv_tensor.h"
#include "ops/conv/implicit_gemm.h"

namespace anymps::ops {

// True where no-smem tiles may compute `plain` from an activation and a filter. Floats are scaled f16.
bool may_skip_smem_of(std::span<const ImplicitGemm> plain, const ConvTensor& image, int64_t taps,
                      const AmaxStates* amaxes);

// Packs the taps of a filter of one group as A fragments for no-smem tiles, floats as scaled f16 where the
// scales of all `amaxes` are valid. `gemms` are changed to point into the tensors that are returned.
std::vector<at::Tensor> nosmem_filter(std::vector<ImplicitGemm>& gemms, const ConvTensor& image,
                                      const ConvTensor& weights, const AmaxStates* amaxes);

// True where no-smem tiles load floats of one tap as they are, and may compute their amax on the way.
bool may_fuse_amax(const ImplicitGemm& plain, const ConvTensor& image, int64_t taps);

// True where no-smem tiles may compute a convolution of floats of one tap as bf16x2.
bool may_be_nosmem_bf16x2(const ImplicitGemm& plain, int64_t taps);

}  // namespace anymps::ops
