// How a factor's block lies in memory, which kernels of products and convolutions are compiled for.
#pragma once

#include <anymps/shaders/lib/operand.h>

#include <cstdint>

namespace anymps::ops {

// Rows follow k (Along) or lie across it; words of four or more elements, aligned (Wide) or not (Shifted).
enum class BlockLayout : uint32_t {
    Across = shaders::lib::operand::kAcross,
    Along = shaders::lib::operand::kAlong,
    AlongWide = shaders::lib::operand::kAlongWide,
    RowsWide = shaders::lib::operand::kRowsWide,
    AlongShifted = shaders::lib::operand::kAlongShifted,
    RowsShifted = shaders::lib::operand::kRowsShifted,
};

}  // namespace anymps::ops
