// Tiles of the contraction kernels, as data, and the choice among them.
#pragma once

#include <cstdint>
#include <vector>

#include "vulkan/instance.h"

namespace anymps::ops {

// What multiplies: lanes, or the matrix units by factors of 16 bits, by f32 cut into 1 to 3 bf16, or
// by f32 that were cut into 1 or 2 halves before.
enum class Arithmetic : uint32_t { Lanes, F16, BF16, F32x1, F32x2, F32x3, Halves1, Halves2 };

constexpr bool is_halves(Arithmetic arithmetic) {
    return arithmetic >= Arithmetic::Halves1;
}

// One way to run a contraction: shaders/lib/contract.slang (register, subgroup), contract_shared.slang
// (shared), contract_matrix.slang (matrix).
struct Tile {
    const char* kernel;  // the kernels' names: matmul_<kernel>_f32, conv_<kernel>_f32, ...
    uint32_t m, n;       // results of a workgroup
    uint32_t workgroup;  // invocations
    uint32_t cost;       // of a workgroup and one k, in any unit, whether its results are all needed or not
    uint32_t resident = 1;  // workgroups that share a core
    uint32_t shared_bytes = 0;
    bool fragments = false;  // multiplies factors that a pass stores as fragments before
    uint32_t start = 0;      // of a workgroup beyond what all have, in k
    uint32_t most_ways = 1;  // how many workgroups can share a tile, by rows and by k
    uint32_t panel = 64;  // rows of the right factor's fragments: twin of right_panel in lib/fragments.slang
    bool ahead = false;   // takes whole words and blocks of k (shaders/lib/contract_ahead.slang)
};

// How the device can best multiply factors of these types. f32_parts: how
// many parts of an f32 factor are wanted; 3 is full precision.
Arithmetic choose_arithmetic(const vulkan::DeviceInfo& device, bool f16, bool bf16, bool f32,
                             uint32_t f32_parts);

// The last part of the names of kernels: "f16", "f32x2", ...; nullptr for Lanes.
const char* suffix(Arithmetic arithmetic);

// True where the matrix units multiply halves that floats were cut into.
bool multiplies_halves(const vulkan::DeviceInfo& device);

// Lanes of a subgroup that the matrix kernels ask for.
uint32_t matrix_subgroup(const vulkan::DeviceInfo& device);

// True where tiles stage factors in shared memory: on GPUs. The environment variable ANYMPS_TILES=gpu chooses
// them on a CPU driver too, for tests.
bool uses_shared_memory(const vulkan::DeviceInfo& device);

// True where compiling a faster kernel takes a CPU driver longer than these products.
bool is_small(const vulkan::DeviceInfo& device, uint64_t products);

// Convolutions without shared memory (shaders/lib/conv_direct.slang): of an image, in blocks
// or by positions, and weights; or of two images.
enum class Direct : uint32_t { None, Image, Positions, Pairs };

struct Problem {
    uint64_t batch = 1, m = 1, n = 1, k = 0;
    bool convolution = false;  // has tiles of its own
    bool floating = true;      // f32 arithmetic
    Arithmetic arithmetic = Arithmetic::Lanes;
    bool may_swap = false;               // rows and columns may change places
    bool k_contiguous = false;           // both factors follow one another along k
    bool n_contiguous = false;           // b follows one another along n, in words of four
    bool may_cut = true;                 // k, into parts
    bool may_pack = false;               // factors of 16 bits, as fragments
    bool whole_words = false;            // those of 16 bytes along k or the rows, and k of 64
    Direct direct = Direct::None;        // of convolutions
    uint64_t longest_part = UINT32_MAX;  // short sums keep the small terms of long ones
    uint64_t variant = 0;                // what else the speed depends on: layouts, windows

    bool operator==(const Problem&) const = default;
};

// How a problem is cut.
struct Plan {
    const Tile* tile;
    bool swapped;
    uint32_t parts;                             // of k, summed by a second kernel
    uint32_t part_k;                            // length of a part, a multiple of 16
    Arithmetic arithmetic = Arithmetic::Lanes;  // of the tile
    // Workgroups that share each of the tiles behind the first `whole`, which do not fill the device any
    // more.
    uint32_t ways = 1, whole = 0;
    uint32_t trial = 0;  // its number while tiles are tuned
};

// The plan of least modelled time among the device's tiles; see choose_plan in tuning.h.
Plan plan_by_model(const vulkan::DeviceInfo& device, const Problem& problem);

// The plan, of as large tiles and the same parts, for the tiles that halves cannot compute.
Plan plan_without_halves(const vulkan::DeviceInfo& device, const Plan& plan, uint32_t f32_parts);

// The plans worth measuring: the model's, then other tiles and other numbers of parts.
std::vector<Plan> candidate_plans(const vulkan::DeviceInfo& device, const Problem& problem);

// Workgroups of a plan.
uint64_t plan_groups(const vulkan::DeviceInfo& device, const Plan& plan, uint64_t batch, uint64_t m,
                     uint64_t n);

// How many workgroups look after the marks of so many tiles, of which mostly none is set.
uint64_t groups_of_marked(const vulkan::DeviceInfo& device, uint64_t groups);

}  // namespace anymps::ops
