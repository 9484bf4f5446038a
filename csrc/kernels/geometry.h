// Index arithmetic that host and kernels share.
#pragma once

#include <anymps/shaders/lib/geometry.h>

#include <cstdint>

namespace anymps::kernels {

// Division by a number fixed at dispatch: multiply and shift instead of divide. Exact for every 32-bit
// dividend (Granlund and Montgomery 1994, figure 4.1). divisor: 1 <= divisor < 2^32; 0 is taken as 1 (an
// empty dimension).
struct FastDivider : shaders::geometry::FastDivider {
    FastDivider() : FastDivider(1) {}
    explicit FastDivider(uint32_t d);

    uint32_t divide(uint32_t n) const {
        const auto t = static_cast<uint32_t>((static_cast<uint64_t>(n) * magic) >> 32);
        const uint32_t first = shift < 1 ? shift : 1;
        return (t + ((n - t) >> first)) >> (shift - first);
    }
};

}  // namespace anymps::kernels
