// Time steps of a recurrent layer: their order, the kernels' tiles, and the operands of their products.
#pragma once

#include <ATen/core/Tensor.h>
#include <anymps/shaders/rnn/recurrent.h>

#include <cstdint>
#include <vector>

namespace anymps::ops {

enum class Cell : uint32_t {
    Projection = shaders::recurrent::kProjection,
    Tanh = shaders::recurrent::kTanh,
    Relu = shaders::recurrent::kRelu,
    Lstm = shaders::recurrent::kLstm,
    Gru = shaders::recurrent::kGru,
};

// Rows of the weights for each unit.
inline int64_t gates_of(Cell cell) {
    return cell == Cell::Lstm ? 4 : cell == Cell::Gru ? 3 : 1;
}

// A step, in the order in which a direction takes them: a range of the rows of packed data.
struct Step {
    int64_t first, rows;
    int64_t prev_first, prev_rows;  // of the step before; no rows: there is none
    int64_t next_rows;
};

// batch_sizes: rows of each time step, which never grow.
std::vector<Step> steps_of(at::IntArrayRef batch_sizes, bool reverse);

// Tile of a step's product: shaders/rnn/recurrent.slang, or recurrent_coopmat.slang.
struct StepTile {
    uint32_t number;            // in the kernels' families
    uint32_t m, n;              // results of a workgroup
    uint32_t workgroup;         // threads
    uint32_t k;                 // of which the product's is a multiple
    uint64_t cost;              // time of a workgroup for one k, in any unit
    uint32_t occupancy = 1;     // workgroups resident on a compute unit in that time
    uint32_t shared_bytes = 0;  // of those on matrix units

    bool on_matrix_units() const { return shared_bytes != 0; }
};

// Tile of least time for [rows, columns] results of operands of this dtype.
const StepTile& step_tile(at::ScalarType type, int64_t rows, int64_t columns);

// Subgroup size that its kernel asks for.
uint32_t step_subgroup(const StepTile& tile);

// An operand has whole panels of columns, which are whole tiles, and k in multiples of kDepthPad.
constexpr int64_t kPanel = shaders::recurrent::kPanel, kDepthPad = shaders::recurrent::kDepthPad;
inline int64_t padded(int64_t size, int64_t to) {
    return (size + to - 1) / to * to;
}

// Of so many elements of a tensor.
inline uint64_t bytes_of(const at::Tensor& t, int64_t elements) {
    return static_cast<uint64_t>(elements * t.element_size());
}

// The operand [n, k] with these strides as steps read it (shaders/rnn/recurrent.slang), zero where nothing
// is, in as many copies. gates above 1: column 4 * unit + gate is row gate * (n / gates) + unit.
struct StepOperand {
    at::Tensor tensor;  // [copies, panels, depth, kPanel]

    StepOperand(const at::Tensor& source, int64_t n, int64_t k, int64_t stride_n, int64_t stride_k,
                int64_t gates = 1, int64_t copies = 1);
    // Zeros.
    StepOperand(at::TensorOptions options, int64_t n, int64_t k, int64_t copies);

    int64_t columns() const { return tensor.size(1) * kPanel; }
    uint64_t bytes() const { return static_cast<uint64_t>(tensor.stride(0) * tensor.element_size()); }
    uint64_t address(int64_t copy = 0) const;
};

}  // namespace anymps::ops
