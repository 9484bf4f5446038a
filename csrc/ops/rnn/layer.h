// One layer of a recurrent network, in one direction or both, and its gradients, without autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <vector>

#include "ops/rnn/steps.h"

namespace anymps::ops {

// Of one direction, with torch.nn.LSTM's names and shapes; what a layer does not have is undefined.
struct RecurrentWeights {
    at::Tensor w_ih, w_hh, b_ih, b_hh, w_hr;
};

// All tensors are of one dtype of float32, float16 and bfloat16, and none is empty.
struct RecurrentLayer {
    Cell cell;
    at::Tensor input;                  // [steps, batch, features] or, packed, [rows, features]; any strides
    std::vector<int64_t> batch_sizes;  // of each step
    at::Tensor h0, c0;                 // [directions, batch, out or hidden]; c0 of LSTM only
    std::vector<RecurrentWeights> weights;  // of each direction

    int64_t directions() const { return static_cast<int64_t>(weights.size()); }
    int64_t hidden() const { return weights[0].w_hh.size(0) / gates_of(cell); }
    int64_t out() const { return weights[0].w_hh.size(1); }  // proj_size, else hidden
    int64_t batch() const { return batch_sizes[0]; }
    int64_t rows() const { return input.dim() == 3 ? input.size(0) * input.size(1) : input.size(0); }
    bool is_projected() const { return weights[0].w_hr.defined(); }
};

// What a direction keeps for its backward, by the rows of packed data.
struct RecurrentReserve {
    at::Tensor gates;  // [..., gates * hidden]: what the cell made of them; of tanh and relu none
    at::Tensor cells;  // [rows, hidden], f32: LSTM's c, GRU's recurrent part of n
    at::Tensor full;   // [rows, hidden]: h before the projection
};

struct RecurrentResult {
    at::Tensor out;                         // [steps, batch, directions * out] or [rows, directions * out]
    at::Tensor last_h, last_c;              // as h0, c0
    std::vector<RecurrentReserve> reserve;  // in training
};

// A layer in all its directions. training: keeps the reserve, which recurrent_backward reads.
RecurrentResult recurrent_forward(const RecurrentLayer& layer, bool training);

struct RecurrentGradients {
    at::Tensor input, h0, c0;
    std::vector<RecurrentWeights> weights;
};

// Gradients of h0, c0 and what the masks ask for; undefined cotangents are zeros.
struct RecurrentMask {
    bool input;
    std::vector<std::array<bool, 5>> weights;  // in the order of RecurrentWeights
};
RecurrentGradients recurrent_backward(const RecurrentLayer& layer, const at::Tensor& out,
                                      const std::vector<RecurrentReserve>& reserve,
                                      const at::Tensor& grad_out, const at::Tensor& grad_last_h,
                                      const at::Tensor& grad_last_c, const RecurrentMask& mask);

}  // namespace anymps::ops
