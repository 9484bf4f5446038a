// Convolutions on matrix units without shared memory: shaders/conv/conv_nosmem.slang.
#pragma once

#include "ops/conv/direction.h"

namespace anymps::ops {

// True where no-smem tiles may compute a direction from an activation and a filter. Floats are scaled f16.
bool supports_nosmem(const Direction& d, const ConvDevice& device);
// True where they may compute one of floats of one tap as bf16x2.
bool supports_nosmem_bf16x2(const Direction& d, const ConvDevice& device);
// True where no-smem tiles load floats of one tap as they are, and may compute their amax on the way.
bool may_fuse_amax(const Direction& d, const ConvDevice& device);

// True where no-smem tiles read the first operand as it lies, not as NC/16HWc16.
bool reads_positions(const Direction& d, const ConvDevice& device);

// Plans to pack the taps of the filter as A fragments for GEMMs whose im2col operand is `image`, floats as
// scaled f16 where all scales are valid, or as bf16x2. Returns the GEMMs, which read the fragments.
std::vector<ImplicitGemm> add_nosmem_filter(PlanBuilder& builder, std::vector<ImplicitGemm> gemms,
                                            const ConvTensor& image, const ConvTensor& filter, bool scaled);

}  // namespace anymps::ops
