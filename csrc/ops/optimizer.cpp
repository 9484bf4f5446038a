// Fused optimizers and the two operators of gradient scaling: one dispatch for all tensors of a dtype.
#include <anymps/ops/optimizer_ops.h>
#include <anymps/shaders/optimizer.h>

#include <ATen/core/Tensor.h>

#include <cmath>

#include "kernels/check_dtype.h"
#include "kernels/multi_tensor_launcher.h"

namespace anymps::ops {
namespace {

namespace shader = shaders::optimizer;
using kernels::MultiTensorCall;
using TensorList = at::TensorList;
using OptionalTensor = std::optional<Tensor>;

// A learning rate that is a number or a tensor, on the CPU or the device.
struct LearningRate {
    double number = 0;
    Tensor tensor;

    explicit LearningRate(double value) : number(value) {}
    explicit LearningRate(const Tensor& value) {
        TORCH_CHECK(value.numel() == 1, "lr should be a 0-dim or 1-element Tensor, got ", value.sizes());
        if (value.is_mps()) {
            tensor = value.to(at::kFloat);
        } else {
            number = value.item<double>();
        }
    }
    uint64_t address() const { return kernels::address_or_0(tensor); }
};

shader::Scaler scaler_of(const OptionalTensor& grad_scale, const OptionalTensor& found_inf) {
    for (const auto* t : {&grad_scale, &found_inf}) {
        if (t->has_value() && (*t)->defined()) {
            TORCH_CHECK((*t)->scalar_type() == at::kFloat && (*t)->is_mps(),
                        "grad_scale and found_inf must be float tensors on the mps device");
        }
    }
    const auto at = [](const OptionalTensor& t) { return kernels::address_or_0(t.value_or(Tensor())); };
    return {at(grad_scale), at(found_inf)};
}

// The lists of one optimizer, each row in one dense layout: rows that are not are worked on in contiguous
// copies, which write_back() copies to where they came from.
class Lists {
  public:
    explicit Lists(std::initializer_list<TensorList> lists) : lists_(lists), owned_(lists.size()) {
        for (const TensorList& list : lists) {
            TORCH_CHECK(list.empty() || list.size() == lists.begin()->size(),
                        "Tensor lists must have the same number of tensors, got ", lists.begin()->size(),
                        " and ", list.size());
        }
        for (size_t row = 0; row < lists_[0].size(); ++row) {
            if (!check(row)) copy(row);
        }
    }
    TensorList operator[](size_t i) const { return lists_[i]; }
    void write_back() {
        for (auto& [original, copy] : copied_) {
            if (!original.is_same(copy)) original.copy_(copy);
        }
    }

  private:
    // True where the row has one dense layout.
    bool check(size_t row) const {
        const Tensor& first = lists_[0][row];
        bool dense = first.is_non_overlapping_and_dense();
        for (const TensorList& list : lists_) {
            if (list.empty()) continue;
            const Tensor& t = list[row];
            TORCH_CHECK(t.sizes() == first.sizes(),
                        "Tensors of the same index must have the same shape, got ", first.sizes(), " and ",
                        t.sizes());
            TORCH_CHECK(t.is_mps() && t.is_floating_point(),
                        "fused optimizers need floating point tensors on mps");
            dense &= t.strides() == first.strides();
        }
        return dense;
    }

    void copy(size_t row) {
        for (size_t i = 0; i < lists_.size(); ++i) {
            if (lists_[i].empty()) continue;
            if (owned_[i].empty()) lists_[i] = owned_[i] = lists_[i].vec();
            copied_.emplace_back(lists_[i][row], lists_[i][row].contiguous());
            owned_[i][row] = copied_.back().second;
        }
    }

    c10::SmallVector<TensorList, 5> lists_;  // the caller's, or owned_
    std::vector<std::vector<Tensor>> owned_;
    std::vector<std::pair<Tensor, Tensor>> copied_;
};

// How gradients are scaled, and by what rate parameters move.
struct Step {
    const LearningRate& lr;
    const OptionalTensor& grad_scale;
    const OptionalTensor& found_inf;
};

// One step of an optimizer over parameters, gradients and their state, in this order. state_steps: the steps
// done, for kernels that ask for them. Fills in what the arguments of all kernels begin with.
template <class Args>
void fused(const kernels::Kernel<Args, shader::Constants, kernels::Arguments::kByPointer>& kernel,
           std::initializer_list<TensorList> columns, std::optional<TensorList> state_steps, const Step& step,
           std::type_identity_t<Args> args) {
    constexpr size_t kGrads = 1;
    const size_t rows = columns.begin()->size();
    if (rows == 0) return;
    Lists lists{columns};
    args.scaler = scaler_of(step.grad_scale, step.found_inf);
    args.lr_address = step.lr.address();
    args.lr = static_cast<float>(step.lr.number);
    std::vector<kernels::TensorListUse> uses;
    for (size_t i = 0; i < columns.size(); ++i) {
        uses.push_back({lists[i], i != kGrads || args.scaler.grad_scale != 0});
    }
    if (state_steps) {
        TORCH_CHECK(state_steps->size() == rows, "Tensor lists must have the same number of tensors, got ",
                    rows, " and ", state_steps->size());
        for (const Tensor& done : *state_steps) {
            TORCH_CHECK(done.scalar_type() == at::kFloat && done.is_mps() && done.numel() == 1,
                        "state_steps must be float tensors of one element on mps");
        }
        uses.push_back({*state_steps, false, false});
    }
    const auto type = [&](size_t list, size_t row) {
        return kernels::code(lists[list].empty() ? at::kFloat : lists[list][row].scalar_type());
    };
    const auto constants = [&](size_t row) {
        return shader::Constants{
            .param_type = type(0, row), .grad_type = type(kGrads, row), .state_type = type(2, row)};
    };
    MultiTensorCall(kernel, std::move(uses), constants)
        .read(step.lr.tensor)
        .read(step.grad_scale.value_or(Tensor()))
        .read(step.found_inf.value_or(Tensor()))
        .dispatch(args);
    lists.write_back();
}

void adam(TensorList self, TensorList grads, TensorList exp_avgs, TensorList exp_avg_sqs,
          TensorList max_exp_avg_sqs, TensorList steps, double beta1, double beta2, double weight_decay,
          double eps, bool amsgrad, bool maximize, bool decoupled, const Step& step) {
    shader::AdamArgs args{};
    args.beta1 = static_cast<float>(beta1);
    args.beta2 = static_cast<float>(beta2);
    args.one_minus_beta1 = static_cast<float>(1 - beta1);
    args.one_minus_beta2 = static_cast<float>(1 - beta2);
    args.log_beta1 = static_cast<float>(std::log(beta1));
    args.log_beta2 = static_cast<float>(std::log(beta2));
    args.weight_decay = static_cast<float>(weight_decay);
    args.eps = static_cast<float>(eps);
    args.amsgrad = amsgrad;
    args.maximize = maximize;
    args.decoupled = decoupled;
    fused(shader::fused_adam, {self, grads, exp_avgs, exp_avg_sqs, amsgrad ? max_exp_avg_sqs : TensorList{}},
          steps, step, args);
}

void adagrad(TensorList self, TensorList grads, TensorList sums, TensorList steps, double lr_decay,
             double weight_decay, double eps, bool maximize, const Step& step) {
    shader::AdagradArgs args{};
    args.lr_decay = static_cast<float>(lr_decay);
    args.weight_decay = static_cast<float>(weight_decay);
    args.eps = static_cast<float>(eps);
    args.maximize = maximize;
    fused(shader::fused_adagrad, {self, grads, sums}, steps, step, args);
}

void sgd(TensorList self, TensorList grads, TensorList buffers, double weight_decay, double momentum,
         double dampening, bool nesterov, bool maximize, bool is_first_step, const Step& step) {
    shader::SgdArgs args{};
    args.weight_decay = static_cast<float>(weight_decay);
    args.momentum = static_cast<float>(momentum);
    args.dampening = static_cast<float>(dampening);
    args.nesterov = nesterov;
    args.maximize = maximize;
    args.first_step = is_first_step;
    fused(shader::fused_sgd, {self, grads, momentum != 0 ? buffers : TensorList{}}, std::nullopt, step, args);
}

}  // namespace

ANYMPS_ROW(_fused_adam_,
           adam(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, beta1, beta2, weight_decay,
                eps, amsgrad, maximize, false, {LearningRate(lr), grad_scale, found_inf}))
ANYMPS_ROW(_fused_adam__tensor_lr,
           adam(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, beta1, beta2, weight_decay,
                eps, amsgrad, maximize, false, {LearningRate(lr), grad_scale, found_inf}))
ANYMPS_ROW(_fused_adamw_,
           adam(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, beta1, beta2, weight_decay,
                eps, amsgrad, maximize, true, {LearningRate(lr), grad_scale, found_inf}))
ANYMPS_ROW(_fused_adamw__tensor_lr,
           adam(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, beta1, beta2, weight_decay,
                eps, amsgrad, maximize, true, {LearningRate(lr), grad_scale, found_inf}))
ANYMPS_ROW(_fused_adagrad_, adagrad(self, grads, state_sums, state_steps, lr_decay, weight_decay, eps,
                                    maximize, {LearningRate(lr), grad_scale, found_inf}))
ANYMPS_ROW(_fused_adagrad__tensor_lr, adagrad(self, grads, state_sums, state_steps, lr_decay, weight_decay,
                                              eps, maximize, {LearningRate(lr), grad_scale, found_inf}))
ANYMPS_ROW(_fused_sgd_, sgd(self, grads, momentum_buffer_list, weight_decay, momentum, dampening, nesterov,
                            maximize, is_first_step, {LearningRate(lr), grad_scale, found_inf}))
ANYMPS_ROW(_fused_sgd__tensor_lr,
           sgd(self, grads, momentum_buffer_list, weight_decay, momentum, dampening, nesterov, maximize,
               is_first_step, {LearningRate(lr), grad_scale, found_inf}))

void ANYMPS_FUNC(_amp_foreach_non_finite_check_and_unscale_)(TensorList self, Tensor& found_inf,
                                                             const Tensor& inv_scale) {
    TORCH_CHECK(inv_scale.is_mps(), "inv_scale must be a MPS tensor.");
    TORCH_CHECK(found_inf.is_mps(), "found_inf must be a MPS tensor.");
    TORCH_CHECK(inv_scale.numel() == 1, "inv_scale must be a 1-element tensor.");
    TORCH_CHECK(found_inf.numel() == 1, "found_inf must be a 1-element tensor.");
    TORCH_CHECK(inv_scale.scalar_type() == at::kFloat, "inv_scale must be a float tensor.");
    TORCH_CHECK(found_inf.scalar_type() == at::kFloat, "found_inf must be a float tensor.");
    if (self.empty()) return;
    for (const Tensor& gradient : self) {
        kernels::check_floating(gradient.scalar_type(), "_amp_foreach_non_finite_check_and_unscale_cpu");
    }
    Lists lists{self};
    const auto constants = [&](size_t row) {
        return shader::Constants{.grad_type = kernels::code(lists[0][row].scalar_type())};
    };
    MultiTensorCall(shader::amp_unscale, {{lists[0], true}}, constants)
        .read(inv_scale)
        .write(found_inf)
        .dispatch({.inverse_scale = kernels::address(inv_scale), .found_inf = kernels::address(found_inf)});
    lists.write_back();
}

Tensor& ANYMPS_FUNC(_amp_update_scale_)(Tensor& self, Tensor& growth_tracker, const Tensor& found_inf,
                                        double scale_growth_factor, double scale_backoff_factor,
                                        int64_t growth_interval) {
    TORCH_CHECK(growth_tracker.is_mps(), "growth_tracker must be a MPS tensor.");
    TORCH_CHECK(self.is_mps(), "current_scale must be a MPS tensor.");
    TORCH_CHECK(found_inf.is_mps(), "found_inf must be a MPS tensor.");
    TORCH_CHECK(growth_tracker.numel() == 1, "growth_tracker must be a 1-element tensor.");
    TORCH_CHECK(self.numel() == 1, "current_scale must be a 1-element tensor.");
    TORCH_CHECK(found_inf.numel() == 1, "found_inf must be a 1-element tensor.");
    TORCH_CHECK(growth_tracker.scalar_type() == at::kInt, "growth_tracker must be an int tensor.");
    TORCH_CHECK(self.scalar_type() == at::kFloat, "current_scale must be a float tensor.");
    TORCH_CHECK(found_inf.scalar_type() == at::kFloat, "found_inf must be a float tensor.");
    const shader::AmpUpdateScaleArgs args{.scale = kernels::address(self),
                                          .growth_tracker = kernels::address(growth_tracker),
                                          .found_inf = kernels::address(found_inf),
                                          .growth_factor = static_cast<float>(scale_growth_factor),
                                          .backoff_factor = static_cast<float>(scale_backoff_factor),
                                          .growth_interval = static_cast<int32_t>(growth_interval)};
    shader::amp_update_scale.call({.workgroup = 1})
        .write(self)
        .write(growth_tracker)
        .read(found_inf)
        .dispatch(args, {1, 1, 1});
    return self;
}

}  // namespace anymps::ops
