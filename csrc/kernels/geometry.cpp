#include "kernels/geometry.h"

#include <bit>

namespace anymps::kernels {

FastDivider::FastDivider(uint32_t d) {
    divisor = d > 0 ? d : 1;
    shift = static_cast<uint32_t>(std::bit_width(divisor - 1));
    const uint64_t excess = (uint64_t{1} << shift) - divisor;
    magic = static_cast<uint32_t>((excess << 32) / divisor + 1);
}

}  // namespace anymps::kernels
