// A GEMM as data: what is asked for, then the passes that compute it. Neither a device nor PyTorch is needed.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "gemm/tiles.h"

namespace anymps::gemm {

// An operand of so many rows of k, as planning sees it.
struct GemmOperand {
    bool along_rows = false;    // contiguous along the rows, not along k
    bool follows_k = true;      // contiguous along k
    bool vectorizable = false;  // 16-byte vectors of 16-bit elements load where it lies
    bool broadcast = false;     // one matrix for the whole batch
};

struct GemmCall {
    GemmProblem problem;
    GemmOperand a, b;                // m and n rows
    uint32_t item_bytes = 4;         // of an element of both, where they are packed
    uint32_t accumulator_bytes = 4;  // of an element of split-K slices
    uint32_t bf16_terms = 3;         // of the fallback: 3 is full precision
    bool sum_batch = false;          // the products of the batch are added
};

enum class GemmPassKind : uint32_t {
    CopyA,                // aligned copy of a, whose rows 16-byte vectors cannot load
    CopyB,                //
    PackFragments,        // a and b as fragments of matrix units
    PackScaledFragments,  // amax of rows, then f16 terms as fragments; sets fallback flags
    PackScaledRowsA,      // amax of rows, then f16 terms in rows
    PackScaledRowsB,
    Gemm,
    FallbackGemm,  // tiles whose flag is set, from the operands themselves
    ReduceSplitK,  // slices, or products of the batch, added in order
};

struct GemmPass {
    GemmPassKind kind;
    uint64_t bytes = 0;  // of memory that it writes for later passes
};

struct GemmPlan {
    Plan product;                   // tile and split-K of the pass Gemm
    Plan fallback;                  // of FallbackGemm
    const Tile* flagged = nullptr;  // whose size the output tiles have that share a fallback flag
    uint64_t flag_count = 0;
    std::array<GemmPass, 6> all;
    uint32_t count = 0;

    std::span<const GemmPass> passes() const { return {all.data(), count}; }
    uint64_t workspace_bytes() const;
};

// plan: choose_plan()'s for the problem. The passes depend on nothing else.
GemmPlan make_gemm_plan(const vulkan::DeviceInfo& device, const GemmCall& call, const Plan& plan);

// "1 of 64 x 64 x 64: register 16 x 32, split-K 1 [gemm] 12 us": the model's estimate, where it has one.
std::string to_text(const GemmCall& call, const GemmPlan& plan);

// True where a product on matrix units gains more from aligned loads of an operand than the copy costs: it
// loads each element once for every tile of the other operand's `others` rows.
bool worth_aligned_copy(const vulkan::DeviceProfile& profile, uint64_t others, double products);

// True where scaled f16 saves an f32 product more time than the packing takes.
bool worth_scaled_f16(const vulkan::DeviceInfo& device, double batch, double m, double n, double k);

// Sizes of packed operands, in elements of the operand's type (f32 where terms of f16 are packed).
struct PackedRows {                        // shaders/gemm/matmul_pack.slang
    static constexpr uint64_t kStep = 32;  // padding of k
    uint64_t vec8s;                        // of 8 k, of a row
    uint64_t norms;                        // before the rows
    uint64_t packed;                       // of all rows
    uint32_t k_of_chunk;                   // of one workgroup that finds an amax
    uint64_t chunks_per_row;               // 0: rows follow k
    uint64_t size;
};
PackedRows packed_rows(uint64_t copies, uint64_t rows, uint64_t k, uint32_t terms, bool follows_k);

struct PackedScaledFragments {              // shaders/gemm/matmul_scaled_pack.slang
    static constexpr uint64_t kPanel = 64;  // rows, and k is padded to as many
    uint64_t norms;                         // before the panels
    uint64_t steps;                         // of 16 k
    uint32_t k_of_chunk;
    uint64_t chunks_per_row;
    uint64_t size;
};
PackedScaledFragments packed_scaled_fragments(uint64_t copies, uint64_t rows, uint64_t k, uint32_t terms);

struct PackedFragments {                               // shaders/gemm/matmul_fragments.slang
    static constexpr uint64_t kPanel = 64;             // rows, and k, of a workgroup that packs
    static constexpr uint64_t kStep = 16;              // k that products have at once
    static constexpr uint64_t kRead = kPanel * kStep;  // elements that products read behind the last one
    uint64_t panels;                                   // of the product's rows a panel
    uint64_t steps;
    uint64_t size;
};
PackedFragments packed_fragments(uint64_t copies, uint64_t rows, uint64_t k, uint64_t panel);

struct AlignedCopy {
    uint64_t count, pitch;  // lines and their length with padding
    uint64_t size;
};
AlignedCopy aligned_copy(uint64_t copies, uint64_t rows, uint64_t k, bool along_rows);

}  // namespace anymps::gemm
