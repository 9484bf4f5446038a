#include <anymps/ops/matmul/linear_ops.h>
#include <anymps/shaders/rnn/rnn_backward.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>

#include "gemm/gemm.h"
#include "kernels/flat_grid.h"
#include "kernels/kernel.h"
#include "ops/rnn/layer.h"
#include "runtime/dispatch_time.h"

namespace anymps::ops {
namespace {

using at::Tensor;
using kernels::address;
using kernels::address_or_0;
using shaders::rnn_backward::RnnBackward;

constexpr kernels::KernelFamily kSteps(shaders::rnn_backward::kernels_with<RnnBackward>,
                                       {"rnn_backward_8x32", "rnn_backward_32x32", "rnn_backward_32x16",
                                        "rnn_backward_16x16", "rnn_backward_matrix_4_f16",
                                        "rnn_backward_matrix_4_bf16", "rnn_backward_matrix_8_f16",
                                        "rnn_backward_matrix_8_bf16"});

// The cotangent of a layer's result: its elements follow one another along the last dimension.
struct Cotangent {
    Tensor tensor;
    int64_t row = 0, step = 0;  // strides; step: of a row of the whole where the data is packed

    explicit Cotangent(const Tensor& grad) {
        if (!grad.defined()) return;
        tensor = grad.stride(-1) == 1 ? grad : grad.contiguous();
        row = tensor.stride(-2);
        step = tensor.dim() == 3 ? tensor.stride(0) : row;
    }
};

// The steps of one direction of a layer, last to first.
class Direction {
  public:
    Direction(const RecurrentLayer& layer, int64_t number, const Tensor& out, const RecurrentReserve& reserve,
              const Cotangent& grad_out, const Tensor& grad_last_h, const Tensor& grad_last_c,
              RecurrentGradients& result)
        : layer_(layer),
          weights_(layer.weights[number]),
          reserve_(reserve),
          grad_out_(grad_out),
          hidden_(layer.hidden()),
          width_(gates_of(layer.cell) * hidden_),
          out_(layer.out()),
          first_column_(number * out_),
          h_(out.view({layer.rows(), layer.directions() * out_}).narrow(1, first_column_, out_)),
          h0_(layer.h0.select(0, number).contiguous()),
          steps_(steps_of(layer.batch_sizes, number == 1)),
          state_(out.options(), layer.batch(), width_, 2),
          recurrent_(weights_.w_hh, out_, width_, weights_.w_hh.stride(1), weights_.w_hh.stride(0)),
          grad_h0_(result.h0.select(0, number)) {
        if (grad_last_h.defined()) grad_last_ = grad_last_h.select(0, number).contiguous();
        grad_ = at::empty({layer.rows(), layer.cell == Cell::Gru ? 2 * width_ : width_}, out.options());
        const auto floats = out.options().dtype(at::kFloat);
        if (layer.cell == Cell::Lstm) {
            c0_ = layer.c0.select(0, number).contiguous();
            carry_ = grad_last_c.defined()
                         ? at::empty({layer.batch(), hidden_}, floats).copy_(grad_last_c.select(0, number))
                         : at::zeros({layer.batch(), hidden_}, floats);
        } else if (layer.cell == Cell::Gru) {
            carry_ = at::empty({layer.batch(), hidden_}, floats);
        }
        if (layer.is_projected()) {
            grad_projected_ = at::empty({layer.rows(), out_}, out.options());
            projected_state_.emplace(out.options(), layer.batch(), out_, 1);
            projection_.emplace(weights_.w_hr, hidden_, out_, weights_.w_hr.stride(1),
                                weights_.w_hr.stride(0));
        }
    }

    size_t count() const { return steps_.size() + 1; }

    // The last one is of the initial state.
    void run(size_t number) {
        const bool first = number == 0, past = number == steps_.size();
        const size_t at = steps_.size() - 1 - number;  // not used where past
        const Step step = past ? Step{} : steps_[at];
        RnnBackward args{};
        args.rows = static_cast<uint32_t>(step.rows);
        args.later_rows = static_cast<uint32_t>(first ? 0 : steps_[at + 1].rows);
        args.next = state_.address((number + 1) % 2);
        args.weights = recurrent_.address();
        if (grad_out_.tensor.defined() && !past) {
            const int64_t index = grad_out_.tensor.dim() == 3 ? step.first / layer_.batch() : step.first;
            args.grad_out = address(grad_out_.tensor) +
                            bytes_of(grad_out_.tensor, index * grad_out_.step + first_column_);
            args.grad_pitch = static_cast<uint32_t>(grad_out_.row);
        }
        args.grad_last = address_or_0(grad_last_);
        args.grad_initial = address(grad_h0_);
        const int64_t k = first ? 0 : width_;
        if (!layer_.is_projected()) {
            set_cell(args, step, number);
            dispatch(args, layer_.cell, k, width_);
            return;
        }
        args.hidden = static_cast<uint32_t>(out_);
        args.grad = address(grad_projected_) + bytes_of(grad_projected_, step.first * out_);
        args.state = projected_state_->address();
        dispatch(args, Cell::Projection, k, out_);
        if (past) return;
        RnnBackward cell{};
        cell.rows = args.rows;
        cell.next = args.state;
        cell.weights = projection_->address();
        set_cell(cell, step, number);
        dispatch(cell, layer_.cell, out_, width_);
    }

    const Tensor& grad_c0() const { return carry_; }

    // Gradients of the weights, and of the input: `add` adds to it.
    void finish(Tensor& grad_input, bool wants_input, const std::array<bool, 5>& wanted,
                RecurrentWeights& result) const {
        const bool gru = layer_.cell == Cell::Gru;
        const auto of_input = gru ? grad_.narrow(1, 0, width_) : grad_;
        const auto of_recurrent = gru ? grad_.narrow(1, width_, width_) : grad_;
        const bool biased = weights_.b_ih.defined();
        const bool bias = biased && (wanted[2] || (wanted[3] && !gru));
        if (wants_input || wanted[0] || bias) {
            std::vector<int64_t> sizes = layer_.input.sizes().vec();
            sizes.back() = width_;
            auto [x, w, b] = linear_backward(layer_.input, of_input.view(sizes), weights_.w_ih,
                                             {wants_input, wanted[0], bias});
            if (wants_input) grad_input = grad_input.defined() ? grad_input.add_(x) : x;
            result.w_ih = w;
            result.b_ih = b;
        }
        if (biased && wanted[3]) {
            if (gru) {
                result.b_hh = at::sum(of_recurrent, at::IntArrayRef{0});
            } else {
                result.b_hh = wanted[2] ? result.b_ih.clone() : result.b_ih;
            }
        }
        if (!wanted[2]) result.b_ih = Tensor();
        if (wanted[1]) result.w_hh = recurrent_gradient(of_recurrent);
        if (wanted[4]) result.w_hr = product(grad_projected_, reserve_.full, Tensor());
    }

  private:
    void set_cell(RnnBackward& args, const Step& step, size_t number) const {
        args.hidden = static_cast<uint32_t>(hidden_);
        args.prev_rows = static_cast<uint32_t>(step.prev_rows);
        args.grad = address(grad_) + bytes_of(grad_, step.first * grad_.size(1));
        args.state = state_.address(number % 2);
        args.carry = address_or_0(carry_);
        const Tensor& cells = reserve_.cells;
        if (cells.defined()) args.cells = address(cells) + bytes_of(cells, step.first * hidden_);
        switch (layer_.cell) {
            case Cell::Lstm:
                args.gates = address(reserve_.gates) + bytes_of(reserve_.gates, step.first * width_);
                args.prev = address(cells) + bytes_of(cells, step.prev_first * hidden_);
                args.prev_pitch = args.hidden;
                args.initial = address(c0_);
                break;
            case Cell::Gru:
                args.gates = address(reserve_.gates) + bytes_of(reserve_.gates, step.first * width_);
                args.prev = address(h_) + bytes_of(h_, step.prev_first * h_.stride(0));
                args.prev_pitch = static_cast<uint32_t>(h_.stride(0));
                args.initial = address(h0_);
                break;
            default:
                args.gates = address(h_) + bytes_of(h_, step.first * h_.stride(0));
                args.prev_pitch = static_cast<uint32_t>(h_.stride(0));
        }
    }

    // k: of the product, without padding; width: rows of the state that is written.
    void dispatch(RnnBackward& args, Cell cell, int64_t k, int64_t width) const {
        const auto rows = std::max(args.rows, args.later_rows);
        const StepTile& tile = step_tile(grad_.scalar_type(), rows, args.hidden);
        args.k = static_cast<uint32_t>(padded(k, tile.k));
        const auto item = static_cast<uint64_t>(grad_.element_size());
        auto call = kSteps(tile.number)
                        .call({.workgroup = tile.workgroup,
                               .subgroup = step_subgroup(tile),
                               .type = kernels::code(grad_.scalar_type()),
                               .cell = static_cast<uint32_t>(cell)});
        const uint64_t of_k = padded(layer_.batch(), kPanel) * item;
        call.read(args.next, padded(k, kDepthPad) * of_k)
            .read(args.weights, padded(k, kDepthPad) * padded(args.hidden, kPanel) * item)
            .read(grad_out_.tensor)
            .read(grad_last_)
            .read(reserve_.gates)
            .read(reserve_.cells)
            .read(h_)
            .read(h0_)
            .read(c0_);
        if (args.rows > 0) {
            const uint64_t columns = cell == Cell::Projection ? out_ : grad_.size(1);
            call.write(args.grad, args.rows * columns * item);
            call.write(args.state, padded(width, kDepthPad) * of_k);
        }
        if (args.carry != 0) call.write(carry_);
        if (args.later_rows > args.rows) call.write(grad_h0_);
        const uint64_t groups = kernels::ceil_div(rows, tile.m) * kernels::ceil_div(args.hidden, tile.n);
        runtime::note_dispatch({.operations = 2.0 * rows * args.hidden * args.k});
        call.dispatch(args, kernels::Grid::linear(groups));
    }

    // a^T @ b, plus `sum` where it is defined, in its place.
    static Tensor product(const Tensor& a, const Tensor& b, const Tensor& sum) {
        Tensor out = sum.defined() ? sum : at::empty({a.size(1), b.size(1)}, a.options());
        const gemm::Matrices result{&out, 0, out.stride(0), 1};
        gemm::Gemm{"linear_backward", 1,         a.size(1),
                   b.size(1),         a.size(0), gemm::matrices(a).transposed(),
                   gemm::matrices(b), result,    sum.defined() ? result : gemm::kNoMatrices}
            .run();
        return out;
    }

    // Of w_hh: the gates' gradients by the h before them, which is h0 for a row's first step.
    Tensor recurrent_gradient(const Tensor& grad) const {
        const int64_t batch = layer_.batch(), count = static_cast<int64_t>(steps_.size());
        const bool even = steps_.front().rows == steps_.back().rows;
        if (!even) {
            std::vector<Tensor> before;
            std::vector<Step> ordered = steps_;
            if (ordered.front().first != 0) std::ranges::reverse(ordered);
            for (const Step& step : ordered) {
                const int64_t of_step = std::min(step.rows, step.prev_rows);
                if (of_step > 0) before.push_back(h_.narrow(0, step.prev_first, of_step));
                if (step.rows > of_step) before.push_back(h0_.narrow(0, of_step, step.rows - of_step));
            }
            return product(grad, at::cat(before), Tensor());
        }
        const int64_t rest = (count - 1) * batch;
        const bool reverse = steps_.front().first != 0;
        Tensor sum = product(grad.narrow(0, reverse ? rest : 0, batch), h0_, Tensor());
        if (rest == 0) return sum;
        return product(grad.narrow(0, reverse ? 0 : batch, rest), h_.narrow(0, reverse ? batch : 0, rest),
                       sum);
    }

    const RecurrentLayer& layer_;
    const RecurrentWeights& weights_;
    const RecurrentReserve& reserve_;
    const Cotangent& grad_out_;
    int64_t hidden_, width_, out_, first_column_;  // width: of the gates
    Tensor h_, h0_;
    std::vector<Step> steps_;
    StepOperand state_, recurrent_;
    Tensor grad_h0_, grad_last_, grad_, c0_, carry_, grad_projected_;
    std::optional<StepOperand> projected_state_, projection_;
};

}  // namespace

RecurrentGradients recurrent_backward(const RecurrentLayer& layer, const Tensor& out,
                                      const std::vector<RecurrentReserve>& reserve, const Tensor& grad_out,
                                      const Tensor& grad_last_h, const Tensor& grad_last_c,
                                      const RecurrentMask& mask) {
    RecurrentGradients result;
    result.h0 = at::empty(layer.h0.sizes(), out.options());
    result.weights.resize(layer.weights.size());
    const Cotangent cotangent(grad_out);
    std::vector<Direction> directions;
    directions.reserve(layer.weights.size());
    for (int64_t d = 0; d < layer.directions(); ++d)
        directions.emplace_back(layer, d, out, reserve[d], cotangent, grad_last_h, grad_last_c, result);
    for (size_t step = 0; step < directions[0].count(); ++step)
        for (Direction& direction : directions) direction.run(step);
    if (layer.c0.defined()) {
        result.c0 = at::empty(layer.c0.sizes(), out.options());
        for (int64_t d = 0; d < layer.directions(); ++d)
            result.c0.select(0, d).copy_(directions[d].grad_c0());
    }
    for (int64_t d = 0; d < layer.directions(); ++d)
        directions[d].finish(result.input, mask.input, mask.weights[d], result.weights[d]);
    return result;
}

}  // namespace anymps::ops
