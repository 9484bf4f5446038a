// torch.nn.LSTM, GRU and RNN, and their cells: a layer is one product of its input for all time steps, then
// one dispatch a step. What is unusual stays with PyTorch's composite, and so do second derivatives.
#include <ATen/autocast_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gru_cell_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/gru_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/lstm_cell_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/lstm_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/rnn_relu_cell_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/rnn_relu_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/rnn_tanh_cell_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/rnn_tanh_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "ops/default_dispatch.h"
#include "ops/rnn/layer.h"

namespace anymps::ops {
namespace {

using at::Tensor;
using at::TensorList;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <Cell kCell, class... Args>
auto composite(const Args&... args) {
    namespace composites = at::compositeimplicitautograd;
    if constexpr (kCell == Cell::Lstm) return composites::lstm(args...);
    if constexpr (kCell == Cell::Gru) return composites::gru(args...);
    if constexpr (kCell == Cell::Tanh) return composites::rnn_tanh(args...);
    if constexpr (kCell == Cell::Relu) return composites::rnn_relu(args...);
}

// A layer but for its tensors, which are input, h0, c0 of LSTM, and of each direction w_ih, w_hh, b_ih, b_hh,
// w_hr as far as it has them.
struct Description {
    Cell cell;
    std::vector<int64_t> batch_sizes;
    bool packed, biased, bidirectional;

    size_t states() const { return cell == Cell::Lstm ? 2 : 1; }
    bool is_projected(TensorList tensors) const {
        return cell == Cell::Lstm && tensors[1].size(2) != tensors[2].size(2);
    }

    RecurrentLayer layer(TensorList tensors) const {
        RecurrentLayer layer{cell, tensors[0], batch_sizes, tensors[1], Tensor(), {}};
        if (cell == Cell::Lstm) layer.c0 = tensors[2];
        for (size_t at = 1 + states(); at < tensors.size();) {
            RecurrentWeights& weights = layer.weights.emplace_back();
            weights.w_ih = tensors[at++];
            weights.w_hh = tensors[at++];
            if (biased) {
                weights.b_ih = tensors[at++].contiguous();
                weights.b_hh = tensors[at++].contiguous();
            }
            if (is_projected(tensors)) weights.w_hr = tensors[at++];
        }
        return layer;
    }

    // For each tensor what `of` makes of a direction's weights.
    template <class All, class Of>
    void for_weights(TensorList tensors, All& directions, const Of& of) const {
        size_t at = 1 + states();
        for (auto& weights : directions) {
            of(at++, weights, 0);
            of(at++, weights, 1);
            if (biased) {
                of(at++, weights, 2);
                of(at++, weights, 3);
            }
            if (is_projected(tensors)) of(at++, weights, 4);
        }
    }
};

// PyTorch's composite on one layer: output, last h and, of LSTM, last c.
variable_list run_composite(const Description& layer, TensorList tensors) {
    const auto call = [&]<Cell kCell>() -> variable_list {
        const auto params = tensors.slice(1 + layer.states());
        const auto run = [&](const auto& state) {
            if (layer.packed) {
                return composite<kCell>(tensors[0], at::tensor(layer.batch_sizes, at::kLong), state, params,
                                        layer.biased, int64_t{1}, 0.0, false, layer.bidirectional);
            }
            return composite<kCell>(tensors[0], state, params, layer.biased, int64_t{1}, 0.0, false,
                                    layer.bidirectional, false);
        };
        if constexpr (kCell == Cell::Lstm) {
            auto [out, h, c] = run(tensors.slice(1, 2));
            return {out, h, c};
        } else {
            auto [out, h] = run(tensors[1]);
            return {out, h};
        }
    };
    switch (layer.cell) {
        case Cell::Lstm:
            return call.operator()<Cell::Lstm>();
        case Cell::Gru:
            return call.operator()<Cell::Gru>();
        case Cell::Tanh:
            return call.operator()<Cell::Tanh>();
        default:
            return call.operator()<Cell::Relu>();
    }
}

struct RecurrentFunction : torch::autograd::Function<RecurrentFunction> {
    // Output, last h and, of LSTM, last c.
    static variable_list forward(AutogradContext* ctx, TensorList tensors, const Description& description) {
        const at::AutoDispatchBelowADInplaceOrView below;
        RecurrentResult result = recurrent_forward(description.layer(tensors), true);
        variable_list saved = tensors.vec();
        saved.push_back(result.out);
        for (const RecurrentReserve& reserve : result.reserve)
            saved.insert(saved.end(), {reserve.gates, reserve.cells, reserve.full});
        ctx->save_for_backward(std::move(saved));
        ctx->set_materialize_grads(false);
        ctx->saved_data["cell"] = static_cast<int64_t>(description.cell);
        ctx->saved_data["batch_sizes"] = description.batch_sizes;
        ctx->saved_data["packed"] = description.packed;
        ctx->saved_data["biased"] = description.biased;
        ctx->saved_data["bidirectional"] = description.bidirectional;
        variable_list results{result.out, result.last_h};
        if (result.last_c.defined()) results.push_back(result.last_c);
        return results;
    }

    static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
        const Description description{static_cast<Cell>(ctx->saved_data["cell"].toInt()),
                                      ctx->saved_data["batch_sizes"].toIntVector(),
                                      ctx->saved_data["packed"].toBool(), ctx->saved_data["biased"].toBool(),
                                      ctx->saved_data["bidirectional"].toBool()};
        const variable_list saved = ctx->get_saved_variables();
        const size_t directions = description.bidirectional ? 2 : 1;
        const size_t count = saved.size() - 1 - 3 * directions;
        const auto tensors = TensorList(saved).slice(0, count);
        variable_list result(count + 1);
        if (std::ranges::none_of(grads, &Tensor::defined)) return result;
        if (!takes(grads, saved)) {
            differentiate_composite(ctx, description, tensors, grads, result);
            return result;
        }
        const RecurrentLayer layer = description.layer(tensors);
        std::vector<RecurrentReserve> reserve;
        for (size_t at = count + 1; at < saved.size(); at += 3)
            reserve.push_back({saved[at], saved[at + 1], saved[at + 2]});
        RecurrentMask mask{ctx->needs_input_grad(0), std::vector<std::array<bool, 5>>(directions)};
        description.for_weights(tensors, mask.weights, [&](size_t at, auto& wanted, size_t which) {
            wanted[which] = ctx->needs_input_grad(at);
        });
        const bool lstm = description.cell == Cell::Lstm;
        RecurrentGradients gradients = recurrent_backward(layer, saved[count], reserve, grads[0], grads[1],
                                                          lstm ? grads[2] : Tensor(), mask);
        result[0] = gradients.input;
        result[1] = gradients.h0;
        if (lstm) result[2] = gradients.c0;
        description.for_weights(tensors, gradients.weights, [&](size_t at, auto& w, size_t which) {
            Tensor* const of[] = {&w.w_ih, &w.w_hh, &w.b_ih, &w.b_hh, &w.w_hr};
            result[at] = *of[which];
        });
        return result;
    }

    // Hooks and transforms may have made anything of what was saved.
    static bool takes(const variable_list& grads, const variable_list& saved) {
        const auto is_like_input = [&](const Tensor& t) {
            return !t.defined() || (has_default_dispatch(t) && t.scalar_type() == saved[0].scalar_type());
        };
        const auto is_default = [](const Tensor& t) { return !t.defined() || has_default_dispatch(t); };
        return !at::GradMode::is_enabled() && no_mode_is_active() &&
               std::ranges::all_of(grads, is_like_input) && std::ranges::all_of(saved, is_default);
    }

    // By the composite's derivatives, of views that stand for the tensors: one of them may depend on another.
    static void differentiate_composite(AutogradContext* ctx, const Description& description,
                                        TensorList tensors, const variable_list& grads,
                                        variable_list& result) {
        const bool create_graph = at::GradMode::is_enabled();
        const at::AutoGradMode enabled(true);
        variable_list inputs, wanted, outputs, cotangents;
        std::vector<size_t> positions;
        for (size_t i = 0; i < tensors.size(); ++i) {
            const bool needs = ctx->needs_input_grad(i);
            inputs.push_back(!needs         ? tensors[i].detach()
                             : create_graph ? tensors[i].view_as(tensors[i])
                                            : tensors[i].detach().requires_grad_());
            if (!needs) continue;
            wanted.push_back(inputs.back());
            positions.push_back(i);
        }
        const variable_list results = run_composite(description, inputs);
        for (size_t i = 0; i < results.size(); ++i) {
            if (!grads[i].defined()) continue;
            outputs.push_back(results[i]);
            cotangents.push_back(grads[i]);
        }
        const variable_list found =
            torch::autograd::grad(outputs, wanted, cotangents, std::nullopt, create_graph, true);
        for (size_t i = 0; i < positions.size(); ++i) result[positions[i]] = found[i];
    }
};

// What the arguments of all overloads come to.
struct Call {
    Cell cell;
    Tensor input;        // [steps, batch, features], with batch_first [batch, steps, features], or packed
    Tensor batch_sizes;  // of packed data
    std::vector<Tensor> hx, params;
    bool biased;
    int64_t layers;
    double dropout;
    bool bidirectional, batch_first;

    int64_t directions() const { return bidirectional ? 2 : 1; }
    bool is_projected() const { return cell == Cell::Lstm && hx[0].size(2) != hx[1].size(2); }
    size_t params_of_layer() const { return directions() * (2 + 2 * biased + is_projected()); }
};

void autocast(Call& call) {
    const auto type = at::autocast::get_autocast_dtype(at::kMPS);
    const auto cast = [&](Tensor& t) { t = at::autocast::cached_cast(type, t, at::kMPS); };
    cast(call.input);
    std::ranges::for_each(call.hx, cast);
    std::ranges::for_each(call.params, cast);
}

// Rows of each step; none where they are not as pack_padded_sequence has them.
std::vector<int64_t> batch_sizes_of(const Call& call) {
    if (!call.batch_sizes.defined()) {
        const auto sizes = call.input.sizes();
        return std::vector<int64_t>(sizes[call.batch_first ? 1 : 0], sizes[call.batch_first ? 0 : 1]);
    }
    const Tensor& t = call.batch_sizes;
    if (t.dim() != 1 || !t.is_cpu() || t.scalar_type() != at::kLong || t.numel() == 0) return {};
    const Tensor dense = t.contiguous();
    const auto* first = dense.const_data_ptr<int64_t>();
    std::vector<int64_t> sizes(first, first + dense.numel());
    int64_t rows = 0;
    for (const int64_t size : sizes) rows += size;
    if (!std::ranges::is_sorted(sizes, std::ranges::greater()) || sizes.back() <= 0 ||
        rows != call.input.size(0))
        return {};
    return sizes;
}

// Shapes, dtypes and sizes as the modules have them; PyTorch's composite finds words for others.
bool is_usual(const Call& call) {
    const auto type = call.input.scalar_type();
    if (type != at::kFloat && !at::isReducedFloatingType(type)) return false;
    if (call.input.dim() != (call.batch_sizes.defined() ? 2 : 3) || call.input.numel() == 0) return false;
    const bool lstm = call.cell == Cell::Lstm;
    if (call.hx.size() != (lstm ? 2 : 1) || call.layers < 1) return false;
    const std::vector<int64_t> batch_sizes = batch_sizes_of(call);
    if (batch_sizes.empty()) return false;
    for (const Tensor& state : call.hx) {
        if (state.dim() != 3 || state.scalar_type() != type || state.numel() == 0 ||
            state.size(0) != call.layers * call.directions() || state.size(1) != batch_sizes[0])
            return false;
    }
    const int64_t out = call.hx[0].size(2), hidden = call.hx.back().size(2);
    const int64_t width = gates_of(call.cell) * hidden;
    // Kernels count the elements of an operand in 32 bits.
    constexpr int64_t kLimit = std::numeric_limits<int32_t>::max();
    if ((4 * hidden + kDepthPad) * (std::max(hidden, batch_sizes[0]) + kDepthPad) > kLimit ||
        call.input.numel() / call.input.size(-1) * call.directions() * out > kLimit)
        return false;
    if (call.params.size() != call.layers * call.params_of_layer()) return false;
    const bool projected = call.is_projected();
    auto param = call.params.begin();
    const auto next_is = [&](std::initializer_list<int64_t> sizes) {
        const Tensor& t = *param++;
        return t.defined() && t.scalar_type() == type && t.sizes() == at::IntArrayRef(sizes);
    };
    for (int64_t layer = 0; layer < call.layers; ++layer) {
        const int64_t features = layer == 0 ? call.input.size(-1) : call.directions() * out;
        for (int64_t direction = 0; direction < call.directions(); ++direction) {
            if (!next_is({width, features}) || !next_is({width, out})) return false;
            if (call.biased && !(next_is({width}) && next_is({width}))) return false;
            if (projected && !next_is({out, hidden})) return false;
        }
    }
    return true;
}

bool any_of(const Call& call, bool (*has)(const Tensor&)) {
    return has(call.input) || std::ranges::any_of(call.hx, has) || std::ranges::any_of(call.params, has);
}

// Output and last states; none where PyTorch's composite is to run.
std::optional<variable_list> run(c10::DispatchKeySet keys, Call call, bool train) {
    if (!no_mode_is_active() ||
        any_of(call, [](const Tensor& t) { return !t.defined() || !is_default_argument(t); }))
        return std::nullopt;
    if (at::autocast::is_autocast_enabled(at::kMPS)) autocast(call);
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastMPS);
    if (!is_usual(call)) return std::nullopt;
    const bool differentiable = keys.has(c10::DispatchKey::AutogradMPS) && at::GradMode::is_enabled() &&
                                any_of(call, [](const Tensor& t) { return t.requires_grad(); });
    // Autograd saves no tensor of inference mode.
    if (differentiable && any_of(call, [](const Tensor& t) { return t.is_inference(); })) return std::nullopt;
    const Description description{call.cell, batch_sizes_of(call), call.batch_sizes.defined(), call.biased,
                                  call.bidirectional};
    Tensor x = call.batch_first ? call.input.transpose(0, 1) : call.input;
    std::vector<std::vector<Tensor>> first, last(call.hx.size());  // states of the layers
    for (const Tensor& state : call.hx)
        first.push_back(call.layers == 1 ? std::vector<Tensor>{state} : state.split(call.directions(), 0));
    for (int64_t layer = 0; layer < call.layers; ++layer) {
        variable_list tensors{x};
        for (const auto& states : first) tensors.push_back(states[layer]);
        const auto params = call.params.begin() + layer * call.params_of_layer();
        tensors.insert(tensors.end(), params, params + call.params_of_layer());
        variable_list results;
        if (differentiable) {
            results = RecurrentFunction::apply(TensorList(tensors), description);
        } else {
            const at::AutoDispatchBelowADInplaceOrView below;
            const RecurrentResult result = recurrent_forward(description.layer(tensors), false);
            results = {result.out, result.last_h, result.last_c};
        }
        x = results[0];
        for (size_t i = 0; i < last.size(); ++i) last[i].push_back(results[1 + i]);
        if (train && call.dropout != 0 && layer + 1 < call.layers) x = at::dropout(x, call.dropout, true);
    }
    variable_list results{call.batch_first ? x.transpose(0, 1) : x};
    for (const auto& states : last) results.push_back(states.size() == 1 ? states[0] : at::cat(states));
    return results;
}

template <Cell kCell, class Result>
Result as_tuple(const variable_list& results) {
    if constexpr (kCell == Cell::Lstm) {
        return {results[0], results[1], results[2]};
    } else {
        return {results[0], results[1]};
    }
}

// The overloads `input` and `data` of one operator. States: TensorList of LSTM, else Tensor.
template <Cell kCell, class States>
struct Overloads {
    using Result = std::conditional_t<kCell == Cell::Lstm, std::tuple<Tensor, Tensor, Tensor>,
                                      std::tuple<Tensor, Tensor>>;

    static Result padded(c10::DispatchKeySet keys, const Tensor& input, States hx, TensorList params,
                         bool has_biases, int64_t num_layers, double dropout, bool train, bool bidirectional,
                         bool batch_first) {
        const auto results = run(keys,
                                 {kCell, input, Tensor(), TensorList(hx).vec(), params.vec(), has_biases,
                                  num_layers, dropout, bidirectional, batch_first},
                                 train);
        if (results) return as_tuple<kCell, Result>(*results);
        return composite<kCell>(input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
                                batch_first);
    }

    static Result packed(c10::DispatchKeySet keys, const Tensor& data, const Tensor& batch_sizes, States hx,
                         TensorList params, bool has_biases, int64_t num_layers, double dropout, bool train,
                         bool bidirectional) {
        const auto results = run(keys,
                                 {kCell, data, batch_sizes, TensorList(hx).vec(), params.vec(), has_biases,
                                  num_layers, dropout, bidirectional, false},
                                 train);
        if (results) return as_tuple<kCell, Result>(*results);
        return composite<kCell>(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train,
                                bidirectional);
    }
};

// One step of one layer: lstm_cell, gru_cell, ... input: [batch, features], states: [batch, hidden].
template <Cell kCell, class States>
auto cell(c10::DispatchKeySet keys, const Tensor& input, States hx, const Tensor& w_ih, const Tensor& w_hh,
          const std::optional<Tensor>& b_ih, const std::optional<Tensor>& b_hh) {
    const auto is_given = [](const std::optional<Tensor>& t) { return t.has_value() && t->defined(); };
    const TensorList states(hx);
    const auto is_matrix = [](const Tensor& t) { return t.defined() && t.dim() == 2; };
    std::optional<variable_list> results;
    const bool usual = is_given(b_ih) == is_given(b_hh) && is_matrix(input) && is_default_argument(input) &&
                       std::ranges::all_of(states, is_matrix);
    if (usual && no_mode_is_active()) {
        std::vector<Tensor> params{w_ih, w_hh}, first;
        if (is_given(b_ih)) params.insert(params.end(), {*b_ih, *b_hh});
        for (const Tensor& state : states) first.push_back(state.unsqueeze(0));
        results = run(
            keys, {kCell, input.unsqueeze(0), Tensor(), first, params, is_given(b_ih), 1, 0.0, false, false},
            false);
    }
    if constexpr (kCell == Cell::Lstm) {
        if (!results) return at::compositeimplicitautograd::lstm_cell(input, hx, w_ih, w_hh, b_ih, b_hh);
        return std::tuple((*results)[1].squeeze(0), (*results)[2].squeeze(0));
    } else {
        if (results) return (*results)[1].squeeze(0);
        namespace composites = at::compositeimplicitautograd;
        if constexpr (kCell == Cell::Gru) return composites::gru_cell(input, hx, w_ih, w_hh, b_ih, b_hh);
        if constexpr (kCell == Cell::Tanh)
            return composites::rnn_tanh_cell(input, hx, w_ih, w_hh, b_ih, b_hh);
        if constexpr (kCell == Cell::Relu)
            return composites::rnn_relu_cell(input, hx, w_ih, w_hh, b_ih, b_hh);
    }
}

using Lstm = Overloads<Cell::Lstm, TensorList>;
using Gru = Overloads<Cell::Gru, const Tensor&>;
using Tanh = Overloads<Cell::Tanh, const Tensor&>;
using Relu = Overloads<Cell::Relu, const Tensor&>;

void register_all(torch::Library& m) {
    m.impl("lstm.input", TORCH_FN(Lstm::padded));
    m.impl("lstm.data", TORCH_FN(Lstm::packed));
    m.impl("gru.input", TORCH_FN(Gru::padded));
    m.impl("gru.data", TORCH_FN(Gru::packed));
    m.impl("rnn_tanh.input", TORCH_FN(Tanh::padded));
    m.impl("rnn_tanh.data", TORCH_FN(Tanh::packed));
    m.impl("rnn_relu.input", TORCH_FN(Relu::padded));
    m.impl("rnn_relu.data", TORCH_FN(Relu::packed));
    m.impl("lstm_cell", TORCH_FN((cell<Cell::Lstm, TensorList>)));
    m.impl("gru_cell", TORCH_FN((cell<Cell::Gru, const Tensor&>)));
    m.impl("rnn_tanh_cell", TORCH_FN((cell<Cell::Tanh, const Tensor&>)));
    m.impl("rnn_relu_cell", TORCH_FN((cell<Cell::Relu, const Tensor&>)));
}

TORCH_LIBRARY_IMPL(aten, MPS, m) {
    register_all(m);
}
TORCH_LIBRARY_IMPL(aten, AutogradMPS, m) {
    register_all(m);
}

}  // namespace
}  // namespace anymps::ops
