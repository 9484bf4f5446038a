// GEMM tile table, and the choice of a tile and a split-K factor by a cost model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "vulkan/instance.h"

namespace anymps::gemm {

// Multiply instruction and operand format: SIMT FMA; matrix units on f16 or bf16; on f32 split into 1 to 3
// bf16 terms (bf16x3 is full precision); on f32 rows scaled and split into 1 or 2 f16 terms by a pass before.
enum class Arithmetic : uint32_t { Simt, F16, BF16, BF16x1, BF16x2, BF16x3, F16x1, F16x2 };

constexpr bool is_scaled_f16(Arithmetic arithmetic) {
    return arithmetic >= Arithmetic::F16x1;
}

enum class TileKind : uint32_t {
    Block,     // m x n results a workgroup
    Subgroup,  // a result a subgroup
    Vector,    // few rows, 16 columns
};

// GEMM kernel and its cost: shaders/gemm/gemm.slang (register, subgroup), gemm_simt.slang (shared),
// gemm_coopmat.slang (matrix).
struct Tile {
    const char* kernel;   // part of kernel names: matmul_<kernel>_f32, conv_<kernel>_f32, ...
    uint32_t m, n;        // tile of a workgroup, in results
    uint32_t workgroup;   // invocations
    uint32_t cost_per_k;  // time of a workgroup for one k, in PlanCosts::unit; a partial tile costs as much
    uint32_t occupancy = 1;  // workgroups resident on a compute unit
    uint32_t shared_bytes = 0;
    bool fragments = false;       // operands are packed into fragments by a pass before
    uint32_t prologue_k = 0;      // extra start-up time of a workgroup, in k
    uint32_t max_tail_split = 1;  // most workgroups that can share one tail tile, by rows and by k
    uint32_t panel = 64;          // rows of a panel of B: twin of right_panel in gemm/gemm_fragments.slang
    // Software pipeline of vec8 loads, whole blocks of k only (shaders/gemm/gemm_pipelined.slang).
    bool pipelined = false;
    TileKind kind = TileKind::Block;
    uint32_t registers = 0;  // 32-bit registers of a thread, where that is more than any device has
    bool whole_k = false;    // its kernel keeps all of B's k in registers: no split-K
    bool in_place = false;   // its epilogue stores four results at once from registers: rows of such
};

// Fastest arithmetic of the device for operands of these types. bf16_terms: bf16 terms an f32 operand is
// split into; 3 is full precision.
Arithmetic choose_arithmetic(const vulkan::DeviceInfo& device, bool f16, bool bf16, bool f32,
                             uint32_t bf16_terms);

// Suffix of kernel names: "f16", "bf16x2", ...; nullptr for Simt.
const char* suffix(Arithmetic arithmetic);

// True where matrix units multiply f32 operands as scaled f16.
bool multiplies_scaled_f16(const vulkan::DeviceInfo& device);

// Subgroup size that the kernels of matrix units ask for.
uint32_t matrix_subgroup(const vulkan::DeviceInfo& device);

// True where tiles stage operands in shared memory: on GPUs. The environment variable ANYMPS_TILES=gpu
// chooses them on a CPU driver too, for tests.
bool uses_shared_memory(const vulkan::DeviceInfo& device);

// True where compiling a faster kernel takes a CPU driver longer than these products.
bool is_small(const vulkan::DeviceInfo& device, uint64_t products);

// Implicit-GEMM algorithm of a convolution: operands staged in shared memory, or loaded to registers without
// it (shaders/conv/conv_nosmem_tile.slang) from an NC/16HWc16 activation, from one whose positions are
// contiguous, or from the same as bf16x2.
enum class ConvAlgo : uint32_t { Staged, NoSmemBlocked, NoSmemFlat, NoSmemBf16x2 };

struct GemmProblem {
    uint64_t batch = 1, m = 1, n = 1, k = 0;
    bool convolution = false;  // convolutions have their own tile table
    bool floating = true;      // f32 arithmetic
    Arithmetic arithmetic = Arithmetic::Simt;
    bool may_swap = false;                  // the transposed product may be computed
    bool k_contiguous = false;              // both operands are contiguous along k
    bool n_contiguous = false;              // b is contiguous along n, in vec4
    bool may_split_k = true;                // split-K is allowed
    bool may_pack = false;                  // operands may be packed into fragments
    bool vectorizable = false;              // operands load as 16-byte vectors, and k is a multiple of 64
    ConvAlgo algo = ConvAlgo::Staged;       // of convolutions
    uint64_t max_k_per_split = UINT32_MAX;  // bound of the rounding error: shorter sums keep small terms
    uint64_t variant = 0;                   // hash of layouts and windows, for the tuner

    bool operator==(const GemmProblem&) const = default;
};

// Kernel and decomposition for a problem.
struct Plan {
    const Tile* tile;
    bool swapped;
    uint32_t split_k;                          // slices of k, added by a second kernel
    uint32_t k_per_split;                      // length of a slice, a multiple of 16
    Arithmetic arithmetic = Arithmetic::Simt;  // of the tile
    // Tail split: workgroups that share each tile after the first full_wave_tiles, which would leave the
    // device partly idle (as stream-K's hybrid schedule).
    uint32_t tail_split = 1, full_wave_tiles = 0;
    uint32_t trial = 0;  // its number while tiles are tuned
    double seconds = 0;  // by the model; 0: not modelled
};

// Plan of least modelled time among the device's tiles; see choose_plan in tuning.h.
Plan plan_by_model(const vulkan::DeviceInfo& device, const GemmProblem& problem);

// Plan for output tiles whose operands scaled f16 cannot hold: tiles as large, the same split-K.
Plan fallback_plan(const vulkan::DeviceInfo& device, const Plan& plan, uint32_t bf16_terms);

// Plans worth measuring: the model's, then other tiles and other split-K factors.
std::vector<Plan> candidate_plans(const vulkan::DeviceInfo& device, const GemmProblem& problem);

// "1 of 64 x 64 x 64: register 16 x 32, split-K 1", for ANYMPS_LOG=plan and profiles.
std::string to_text(const GemmProblem& problem, const Plan& plan);

// Workgroups that a plan launches.
uint64_t plan_groups(const vulkan::DeviceInfo& device, const Plan& plan, uint64_t batch, uint64_t m,
                     uint64_t n);

// Workgroups that scan the fallback flags of so many tiles; flags are rarely set.
uint64_t groups_of_flagged(const vulkan::DeviceInfo& device, uint64_t groups);

}  // namespace anymps::gemm
