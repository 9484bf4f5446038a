#include "kernels/foreach_launcher.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/result_type.h>
#include <anymps/kernels/pointwise_kernels.h>

#include <algorithm>

#include "kernels/multi_tensor_launcher.h"
#include "kernels/pointwise_constants.h"

namespace anymps::kernels {
namespace {

using at::ScalarType;
using at::Tensor;
using at::TensorList;

// The bytes of the tensor of an entry.
struct Range {
    uint64_t begin, end;
    size_t entry;
    bool operator==(const Range&) const = default;
};

// One call: `out` is empty while it is only looked at whether the row can run over the list that `like`
// names.
struct Foreach {
    const PointwiseKernel& row;
    TensorList like;  // decides about dtypes and layouts
    ForeachOperands operands;
    bool mixed = false;  // lists of other dtypes are converted

    bool fits() const {
        if (like.empty()) return false;
        for (const ForeachOperand& operand : operands) {
            if (const auto* list = std::get_if<TensorList>(&operand); list && list->size() != like.size())
                return false;
            if (const auto* numbers = std::get_if<at::ArrayRef<c10::Scalar>>(&operand);
                numbers && numbers->size() != like.size())
                return false;
        }
        for (size_t i = 0; i < like.size(); ++i) {
            if (!fits(i)) return false;
        }
        return true;
    }

    bool fits(size_t i) const {
        const Tensor& t = like[i];
        if (!t.is_mps() || t.layout() != at::kStrided || !at::isFloatingType(t.scalar_type()) ||
            !t.is_non_overlapping_and_dense() || !row.computes_in(t.scalar_type()))
            return false;
        return std::all_of(operands.begin(), operands.end(), [&](const ForeachOperand& operand) {
            if (const auto* list = std::get_if<TensorList>(&operand)) return matches(t, (*list)[i]);
            if (const auto* one = std::get_if<Tensor>(&operand)) {
                return one->dim() == 0 && (one->is_mps() || one->is_cpu()) && !one->is_complex() &&
                       at::result_type(t, *one) == t.scalar_type();
            }
            const auto* one_for_all = std::get_if<c10::Scalar>(&operand);
            const c10::Scalar& number =
                one_for_all ? *one_for_all : std::get<at::ArrayRef<c10::Scalar>>(operand)[i];
            return !number.isComplex() && !number.isBoolean();  // which some operators refuse
        });
    }

    bool matches(const Tensor& t, const Tensor& other) const {
        const bool convertible = mixed && at::isFloatingType(other.scalar_type());
        return other.is_mps() && other.layout() == at::kStrided && other.sizes() == t.sizes() &&
               other.strides() == t.strides() && (convertible || other.scalar_type() == t.scalar_type());
    }

    // No result overlaps another one, or what an entry reads, but for its own operand exactly: entries run in
    // any order.
    bool independent(TensorList out) const {
        std::vector<Range> written;
        written.reserve(out.size());
        for (size_t i = 0; i < out.size(); ++i) {
            if (out[i].numel() > 0)
                written.push_back({address(out[i]), address(out[i]) + out[i].nbytes(), i});
        }
        std::ranges::sort(written, {}, &Range::begin);
        for (size_t k = 1; k < written.size(); ++k) {
            if (written[k].begin < written[k - 1].end) return false;
        }
        const auto readable = [&](const Tensor& t, size_t entry) {
            const Range read{address(t), address(t) + t.nbytes(), entry};
            const auto found = std::ranges::upper_bound(written, read.begin, {}, &Range::end);
            return t.numel() == 0 || found == written.end() || found->begin >= read.end || *found == read;
        };
        return std::all_of(operands.begin(), operands.end(), [&](const ForeachOperand& operand) {
            if (const auto* one = std::get_if<Tensor>(&operand))
                return one->is_cpu() || readable(*one, out.size());
            const auto* list = std::get_if<TensorList>(&operand);
            if (list == nullptr) return true;
            for (size_t i = 0; i < list->size(); ++i) {
                if (!readable((*list)[i], i)) return false;
            }
            return true;
        });
    }

    ScalarType common(size_t i) const { return mixed ? ScalarType::Float : like[i].scalar_type(); }

    // The code of an operand for entry i.
    uint32_t operand_code(const ForeachOperand& operand, size_t i) const {
        if (const auto* list = std::get_if<TensorList>(&operand)) return code((*list)[i].scalar_type());
        const auto* one = std::get_if<Tensor>(&operand);
        if (one != nullptr && one->is_mps()) return code(one->scalar_type()) | PointwiseKernel::kOne;
        return code(common(i)) | PointwiseKernel::kImmediate;
    }

    void run(TensorList out) const {
        // Lists that stand for one tensor, and words of the table that stand for numbers.
        std::vector<std::vector<Tensor>> repeated;
        std::vector<std::vector<uint64_t>> numbers;
        repeated.reserve(operands.size());
        numbers.reserve(operands.size());
        std::vector<TensorListUse> lists{{out, true}};
        size_t k = 0;
        for (const ForeachOperand& operand : operands) {
            const bool opmath = k++ >= row.inputs() || row.has(PointwiseKernel::kOpmath);
            if (const auto* list = std::get_if<TensorList>(&operand)) {
                lists.push_back({*list, false});
                continue;
            }
            const auto* one = std::get_if<Tensor>(&operand);
            if (one != nullptr && one->is_mps()) {
                lists.push_back({repeated.emplace_back(out.size(), *one), false, false});
                continue;
            }
            const auto* each = std::get_if<at::ArrayRef<c10::Scalar>>(&operand);
            const c10::Scalar number = one    ? one->item()
                                       : each ? c10::Scalar()
                                              : std::get<c10::Scalar>(operand);
            auto& words = numbers.emplace_back();
            words.reserve(out.size());
            for (size_t i = 0; i < out.size(); ++i)
                words.push_back(scalar_argument(each ? (*each)[i] : number, common(i), opmath));
            lists.push_back({{}, false, false, words});
        }
        const auto constants = [&](size_t i) {
            pointwise_shader::Constants result{.common = code(common(i)), .out0 = code(out[i].scalar_type())};
            for (size_t input = 0; input < row.inputs(); ++input)
                input_code(result, input) = operand_code(operands.begin()[input], i);
            return result;
        };
        const std::string name = std::string(row.name()) + "_f32_foreach";
        MultiTensorCall(pointwise_shader::ForeachKernel{name}, lists, constants).dispatch({});
    }
};

TensorList first_list(ForeachOperands operands) {
    for (const ForeachOperand& operand : operands) {
        if (const auto* list = std::get_if<TensorList>(&operand)) return *list;
    }
    return {};
}

}  // namespace

std::optional<std::vector<Tensor>> foreach (const PointwiseKernel& row, ForeachOperands operands) {
    const Foreach call{row, first_list(operands), operands};
    if (!call.fits()) return std::nullopt;
    std::vector<Tensor> out;
    out.reserve(call.like.size());
    for (const Tensor& t : call.like) out.push_back(at::empty_like(t));
    call.run(out);
    return out;
}

bool foreach_into(const PointwiseKernel& row, TensorList out, ForeachOperands operands) {
    const Foreach call{row, out, operands};
    if (!call.fits() || !call.independent(out)) return false;
    call.run(out);
    return true;
}

bool foreach_copy(TensorList to, TensorList from) {
    const ForeachOperands source{from};
    const Foreach call{rows::copy, to, source, /*mixed=*/true};
    if (!call.fits() || !call.independent(to)) return false;
    call.run(to);
    return true;
}

}  // namespace anymps::kernels
