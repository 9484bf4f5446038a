// Statistics of the channels of contiguous images whose planes are small, as 7 x 7: their planes are no whole
// words, but several channels are.
#pragma once

#include <ATen/core/TensorBase.h>

#include "kernels/channel_norm.h"
#include "kernels/route_device.h"

namespace anymps::kernels {

struct Planes {
    uint64_t images, channels, positions;
};

// Whether the kernels take dense images [images, channels, positions] of such elements at such an address:
// for sums, and for moments and gradients, of which grad must be so, too.
bool supports_reduce_nc_hw(c10::ScalarType type, uint64_t address, const Planes& planes,
                           const RouteDevice& device);
bool supports_reduce_nc_hw_moments(c10::ScalarType type, uint64_t address, const Planes& planes,
                                   const RouteDevice& device);

// Sums of channels.
void reduce_nc_hw(const at::TensorBase& x, const Planes& planes, const at::TensorBase& sums);
// Biased variances and means, as results in float32, and what follows from them.
void reduce_nc_hw_moments(const at::TensorBase& x, const Planes& planes, const ChannelStatistics& statistics);
// Sums of grad (x - mean) rstd and of grad, which may have another dtype than x; sums are float32, and so
// must mean and rstd be.
void reduce_nc_hw_gradients(const at::TensorBase& grad, const at::TensorBase& x, const Planes& planes,
                            const at::TensorBase& mean, const at::TensorBase& rstd,
                            const at::TensorBase& products, const at::TensorBase& sums);

}  // namespace anymps::kernels
