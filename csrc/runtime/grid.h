// Sizes of dispatches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace anymps::runtime {

constexpr uint64_t ceil_div(uint64_t a, uint64_t b) {
    return (a + b - 1) / b;
}

// Workgroup counts. Never more than kMax in a dimension: use linear() for one long dimension.
struct Grid {
    static constexpr uint32_t kMax = 65535;  // on Intel and on software drivers
    // Of a folded grid, about, or more: long dispatches are cut into whole rows.
    static constexpr uint64_t kFoldedRows = 1024;

    uint32_t x = 1, y = 1, z = 1;
    // At least `groups` groups as x * y; kernels number them with linear_group_id() and check the bound.
    static Grid linear(uint64_t groups) {
        if (groups <= kMax) return {static_cast<uint32_t>(groups), 1, 1};
        const uint64_t rows = std::max<uint64_t>(kFoldedRows, ceil_div(groups, kMax));
        if (rows > kMax)
            throw std::runtime_error("a kernel of " + std::to_string(groups) +
                                     " workgroups exceeds the device's limit");
        const uint64_t x = ceil_div(groups, rows);
        return {static_cast<uint32_t>(x), static_cast<uint32_t>(ceil_div(groups, x)), 1};
    }
};

}  // namespace anymps::runtime
