#include <ATen/core/Tensor.h>
#include <anymps/kernels/pointwise_kernels.h>
#include <anymps/shaders/strided_copy.h>

#include <array>

#include "kernels/flat_grid.h"
#include "kernels/geometry.h"
#include "kernels/launch_config.h"
#include "kernels/pointwise_launcher.h"
#include "kernels/transposed_copy.h"

namespace anymps::kernels {
namespace {

using c10::ScalarType;

// The dtype whose arithmetic type holds every value on its way from one dtype to another.
ScalarType conversion(ScalarType to, ScalarType from) {
    if (c10::isComplexType(to) || c10::isComplexType(from)) return ScalarType::ComplexFloat;
    if (c10::isFloatingType(to) || c10::isFloatingType(from)) return ScalarType::Float;
    const auto narrow = [](ScalarType t) { return compute_of(t) == Compute::I32; };
    return narrow(to) && narrow(from) ? ScalarType::Int : ScalarType::Long;
}

// The operand's elements as words of 8 bytes, several elements each: `shape` and `strides` (in words) are
// those of the iterator, innermost dimension last.
at::Tensor words_of(const at::TensorIteratorBase& iter, int arg, int64_t per_word) {
    constexpr int64_t kWord = 8;
    const auto& storage = iter.tensor_base(arg).storage();
    c10::SmallVector<int64_t, 6> shape, strides;
    for (int d = iter.ndim() - 1; d >= 0; --d) {
        shape.push_back(d == 0 ? iter.shape()[d] / per_word : iter.shape()[d]);
        strides.push_back(d == 0 ? 1 : iter.strides(arg)[d] / kWord);
    }
    const auto first =
        reinterpret_cast<uint64_t>(iter.data_ptr(arg)) - reinterpret_cast<uint64_t>(storage.data());
    auto words = c10::make_intrusive<c10::TensorImpl>(
        c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::MPS), caffe2::TypeMeta::Make<int64_t>());
    words->set_sizes_and_strides(shape, strides, static_cast<int64_t>(first) / kWord);
    return at::Tensor(std::move(words));
}

namespace shader = shaders::strided_copy;
constexpr int kOuterDims = shader::kOuter;

// A strided copy of few dimensions whose lines are words of 16 bytes, on GPUs. False where they are not.
bool copy_lines(at::TensorIteratorBase& iter) {
    constexpr int64_t kWord = 16;
    const auto item = static_cast<int64_t>(iter.element_size(0));
    const int64_t line = iter.shape()[0] * item, words = iter.numel() * item / kWord;
    if (launch_config().software || iter.ndim() > kOuterDims + 1 || line % kWord != 0 ||
        words > UINT32_MAX / 2)
        return false;
    for (int arg = 0; arg < 2; ++arg) {
        if (iter.strides(arg)[0] != item || reinterpret_cast<uint64_t>(iter.data_ptr(arg)) % kWord != 0)
            return false;
        for (int d = 1; d < iter.ndim(); ++d)
            if (iter.strides(arg)[d] % kWord != 0) return false;
    }
    shader::LineCopyArgs args{};
    args.to = reinterpret_cast<uint64_t>(iter.data_ptr(0));
    args.from = reinterpret_cast<uint64_t>(iter.data_ptr(1));
    args.line = FastDivider(static_cast<uint32_t>(line / kWord));
    args.count = static_cast<uint32_t>(words);
    for (int d = 1; d < iter.ndim(); ++d) {
        args.to_stride[d - 1] = iter.strides(0)[d];
        args.from_stride[d - 1] = iter.strides(1)[d];
    }
    for (int d = 1; d < kOuterDims; ++d)
        args.size[d - 1] = FastDivider(d < iter.ndim() ? static_cast<uint32_t>(iter.shape()[d]) : 1);
    shader::line_copy.call({.workgroup = launch_config().workgroup})
        .read(iter.tensor_base(1))
        .write(iter.tensor_base(0))
        .dispatch(args, flat_grid(ceil_div(args.count, shader::kPrefetch), launch_config().workgroup));
    return true;
}

// A strided copy whose lines follow one another in memory moves 8 bytes a thread. False where they do not.
bool copy_words(at::TensorIteratorBase& iter) {
    constexpr int64_t kWord = 8;
    const auto item = static_cast<int64_t>(iter.element_size(0));
    if (item >= kWord || iter.shape()[0] * item % kWord != 0) return false;
    for (int arg = 0; arg < 2; ++arg) {
        const auto& storage = iter.tensor_base(arg).storage();
        if (iter.strides(arg)[0] != item || reinterpret_cast<uint64_t>(storage.data()) % kWord != 0)
            return false;
        if (reinterpret_cast<uint64_t>(iter.data_ptr(arg)) % kWord != 0) return false;
        for (int d = 1; d < iter.ndim(); ++d) {
            if (iter.strides(arg)[d] % kWord != 0 || iter.strides(arg)[d] < 0) return false;
        }
    }
    at::Tensor to = words_of(iter, 0, kWord / item);
    const at::Tensor from = words_of(iter, 1, kWord / item);
    auto words = at::TensorIteratorConfig()
                     .set_check_mem_overlap(false)
                     .resize_outputs(false)
                     .add_output(to)
                     .add_const_input(from)
                     .build();
    pointwise(words, rows::copy_bits, {}, ScalarType::Long);
    return true;
}

}  // namespace

void pointwise_copy(at::TensorIteratorBase& iter) {
    const ScalarType to = iter.dtype(0), from = iter.dtype(1);
    if (to != from) return pointwise(iter, rows::copy, {}, conversion(to, from));
    if (iter.numel() > 0 && iter.can_use_32bit_indexing() && transposed_copy(iter)) return;
    if (iter.numel() > 0 && iter.ndim() > 1 && (copy_lines(iter) || copy_words(iter))) return;
    // Bits: NaN payloads stay, and fewer pipelines are needed.
    pointwise(iter, rows::copy_bits, {}, integer_of_size(c10::elementSize(to)));
}

}  // namespace anymps::kernels
