#include <anymps/ops/matmul/linear_ops.h>
#include <anymps/shaders/rnn/rnn_forward.h>

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>

#include <optional>

#include "kernels/flat_grid.h"
#include "kernels/kernel.h"
#include "ops/rnn/layer.h"
#include "runtime/dispatch_time.h"

namespace anymps::ops {
namespace {

using at::Tensor;
using kernels::address;
using shaders::rnn_forward::RnnForward;

// By what a thread takes of a product, then by the tile.
constexpr kernels::KernelFamily kSteps(shaders::rnn_forward::kernels_with<RnnForward>,
                                       {"rnn_forward_units_", "rnn_forward_gates_"},
                                       {"8x32", "32x32", "32x16", "16x16", "matrix_4_f16", "matrix_4_bf16",
                                        "matrix_8_f16", "matrix_8_bf16"});

// One direction of a layer.
class Direction {
  public:
    Direction(const RecurrentLayer& layer, int64_t number, bool training, RecurrentResult& result)
        : layer_(layer),
          weights_(layer.weights[number]),
          training_(training),
          result_(result),
          hidden_(layer.hidden()),
          out_(layer.out()),
          pitch_(layer.directions() * out_),
          h0_(layer.h0.select(0, number).contiguous()),
          steps_(steps_of(layer.batch_sizes, number == 1)),
          state_(h0_, layer.batch(), out_, out_, 1, 1, 2),
          recurrent_(weights_.w_hh, weights_.w_hh.size(0), out_, weights_.w_hh.stride(0),
                     weights_.w_hh.stride(1), gates_of(layer.cell)),
          first_column_(number * out_),
          last_h_(result.last_h.select(0, number)) {
        const bool gru = layer.cell == Cell::Gru;
        Tensor bias = weights_.b_ih;
        if (bias.defined() && !gru) bias = at::add(bias, weights_.b_hh);
        if (bias.defined() && gru) recurrent_bias_ = weights_.b_hh.contiguous();
        gates_ = linear(layer.input, weights_.w_ih, bias.defined() ? std::optional(bias) : std::nullopt);
        const auto floats = gates_.options().dtype(at::kFloat);
        if (layer.cell == Cell::Lstm) {
            c0_ = layer.c0.select(0, number).contiguous();
            last_c_ = result.last_c.select(0, number);
            // Without a backward a step needs the one before, and rows that it does not have are at an end.
            cells_ = at::empty({training ? layer.rows() : 2 * layer.batch(), hidden_}, floats);
        } else if (gru && training) {
            cells_ = at::empty({layer.rows(), hidden_}, floats);
        }
        if (layer.is_projected()) {
            full_ = at::empty({training ? layer.rows() : layer.batch(), hidden_}, gates_.options());
            full_state_.emplace(gates_.options(), layer.batch(), hidden_, 1);
            projection_.emplace(weights_.w_hr, out_, hidden_, weights_.w_hr.stride(0),
                                weights_.w_hr.stride(1));
        }
    }

    // Steps of both directions alternate, so that they run side by side.
    size_t count() const { return steps_.size(); }

    void run(size_t number) {
        const Step& step = steps_[number];
        const int64_t to = (number + 1) % 2;
        RnnForward args = common(step);
        args.state = state_.address(number % 2);
        args.weights = recurrent_.address();
        args.gates = address(gates_) + bytes_of(gates_, step.first * gates_.size(-1));
        args.bias = kernels::address_or_0(recurrent_bias_);
        if (cells_.defined()) {
            const auto row = [&](int64_t first, size_t parity) {
                return address(cells_) +
                       bytes_of(cells_, (training_ ? first : parity % 2 * layer_.batch()) * hidden_);
            };
            args.prev = row(step.prev_first, number + 1);
            args.cells = row(step.first, number);
        }
        args.initial = kernels::address_or_0(c0_);
        args.last_c = kernels::address_or_0(last_c_);
        args.hidden = static_cast<uint32_t>(hidden_);
        args.columns = static_cast<uint32_t>(recurrent_.columns());
        if (!layer_.is_projected()) {
            set_result(args, step, to);
            dispatch(args, layer_.cell, out_, state_, step);
            return;
        }
        args.out = address(full_) + (training_ ? bytes_of(full_, step.first * hidden_) : 0);
        args.out_pitch = args.hidden;
        args.next = full_state_->address();
        dispatch(args, layer_.cell, out_, *full_state_, step);
        RnnForward projected = common(step);
        projected.state = full_state_->address();
        projected.weights = projection_->address();
        projected.hidden = static_cast<uint32_t>(out_);
        projected.columns = static_cast<uint32_t>(projection_->columns());
        set_result(projected, step, to);
        dispatch(projected, Cell::Projection, hidden_, state_, step);
    }

    RecurrentReserve reserve() const {
        const bool gates = gates_of(layer_.cell) > 1;
        return {gates ? gates_ : Tensor(), cells_, full_};
    }

  private:
    RnnForward common(const Step& step) const {
        RnnForward args{};
        args.rows = static_cast<uint32_t>(step.rows);
        args.prev_rows = static_cast<uint32_t>(step.prev_rows);
        args.next_rows = static_cast<uint32_t>(step.next_rows);
        return args;
    }

    void set_result(RnnForward& args, const Step& step, int64_t to) const {
        args.out = address(result_.out) + bytes_of(result_.out, step.first * pitch_ + first_column_);
        args.out_pitch = static_cast<uint32_t>(pitch_);
        args.next = state_.address(to);
        args.last_h = address(last_h_);
    }

    // k: of the product, without padding; next: the state that is written.
    void dispatch(RnnForward& args, Cell cell, int64_t k, const StepOperand& next, const Step& step) const {
        const StepTile& tile = step_tile(gates_.scalar_type(), step.rows, args.columns);
        args.k = static_cast<uint32_t>(padded(k, tile.k));
        const bool projects = cell == Cell::Projection;
        const auto item = static_cast<uint64_t>(gates_.element_size());
        const auto hidden = uint64_t{args.hidden}, rows = uint64_t{args.rows};
        auto call = kSteps(gates_of(cell) > 1, tile.number)
                        .call({.workgroup = tile.workgroup,
                               .subgroup = step_subgroup(tile),
                               .type = kernels::code(gates_.scalar_type()),
                               .cell = static_cast<uint32_t>(cell),
                               .training = training_});
        const uint64_t depth = padded(k, kDepthPad) * item;
        call.read(args.state, depth * padded(layer_.batch(), kPanel))
            .read(args.weights, depth * args.columns)
            .write(args.next, next.bytes())
            .write(args.out, ((rows - 1) * args.out_pitch + hidden) * item);
        // Of both directions' last ones, which run side by side.
        const auto write_last = [&](uint64_t at) {
            if (at != 0 && args.next_rows < args.rows) call.write(at, layer_.batch() * hidden * item);
        };
        write_last(args.last_h);
        write_last(args.last_c);
        if (!projects) {
            const uint64_t bytes = rows * gates_.size(-1) * item;
            if (training_ && gates_of(cell) > 1) {
                call.write(args.gates, bytes);
            } else {
                call.read(args.gates, bytes);
            }
            call.read(recurrent_bias_).read(c0_);
        }
        if (args.prev != 0 && args.prev_rows != 0) call.read(args.prev, args.prev_rows * hidden * 4);
        if (args.cells != 0) call.write(args.cells, rows * hidden * 4);
        const uint64_t groups = kernels::ceil_div(rows, tile.m) * (args.columns / tile.n);
        runtime::note_dispatch({.operations = 2.0 * args.rows * args.columns * args.k});
        call.dispatch(args, kernels::Grid::linear(groups));
    }

    const RecurrentLayer& layer_;
    const RecurrentWeights& weights_;
    bool training_;
    RecurrentResult& result_;
    int64_t hidden_, out_, pitch_;  // pitch: of result_.out
    Tensor h0_;
    std::vector<Step> steps_;
    StepOperand state_, recurrent_;
    int64_t first_column_;
    Tensor last_h_, last_c_, c0_, gates_, recurrent_bias_, cells_, full_;
    std::optional<StepOperand> full_state_, projection_;
};

}  // namespace

RecurrentResult recurrent_forward(const RecurrentLayer& layer, bool training) {
    RecurrentResult result;
    std::vector<int64_t> sizes = layer.input.sizes().vec();
    sizes.back() = layer.directions() * layer.out();
    const auto options = layer.input.options();
    result.out = at::empty(sizes, options);
    result.last_h = at::empty(layer.h0.sizes(), options);
    if (layer.c0.defined()) result.last_c = at::empty(layer.c0.sizes(), options);
    std::vector<Direction> directions;
    directions.reserve(layer.weights.size());
    for (int64_t d = 0; d < layer.directions(); ++d) directions.emplace_back(layer, d, training, result);
    for (size_t step = 0; step < directions[0].count(); ++step)
        for (Direction& direction : directions) direction.run(step);
    if (training)
        for (const Direction& direction : directions) result.reserve.push_back(direction.reserve());
    return result;
}

}  // namespace anymps::ops
