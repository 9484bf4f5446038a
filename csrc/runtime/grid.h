// Sizes of dispatches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace anymps::runtime {

// Workgroup counts. Never more than kMax in a dimension: use linear() for one long dimension.
struct Grid {
    static constexpr uint32_t kMax = 65535;  // on Intel and on software drivers

    static constexpr uint64_t kFoldedRows = 256;  // or more, of a folded grid: it is cut into whole ones

    uint32_t x = 1, y = 1, z = 1;
    // At least `groups` groups as x * y; kernels number them with linear_group_id() and check the bound.
    static Grid linear(uint64_t groups) {
        if (groups <= kMax) return {static_cast<uint32_t>(groups), 1, 1};
        const uint64_t rows = std::max<uint64_t>(kFoldedRows, (groups + kMax - 1) / kMax);
        if (rows > kMax)
            throw std::runtime_error("a kernel of " + std::to_string(groups) +
                                     " workgroups exceeds the device's limit");
        return {static_cast<uint32_t>((groups + rows - 1) / rows), static_cast<uint32_t>(rows), 1};
    }
};

}  // namespace anymps::runtime
