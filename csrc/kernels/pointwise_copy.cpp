#include <ATen/core/Tensor.h>
#include <anymps/kernels/pointwise_kernels.h>
#include <anymps/shaders/strided_copy.h>

#include <algorithm>

#include "kernels/copy_routes.h"
#include "kernels/flat_grid.h"
#include "kernels/geometry.h"
#include "kernels/pointwise_launcher.h"
#include "kernels/route.h"

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

// Whether both operands' first dimension is lines of whole words of `word` bytes, aligned wherever they
// start.
bool has_lines_of(int64_t word, const CopyProblem& p) {
    if (p.shape.size() < 2 || p.numel() == 0 || p.shape[0] * p.item() % word != 0) return false;
    for (size_t arg = 0; arg < 2; ++arg) {
        if (p.strides[arg][0] != p.item() || p.address[arg] % word != 0) return false;
        for (const int64_t stride : p.strides[arg].slice(1))
            if (stride % word != 0) return false;
    }
    return true;
}

bool converts(const CopyProblem& p, const RouteDevice&) {
    return p.to != p.from;
}

void convert(const CopyProblem& p, at::TensorIteratorBase& iter) {
    pointwise(iter, rows::copy, {}, conversion(p.to, p.from));
}

constexpr int64_t kLineWord = 16;

// Few dimensions, whose lines are words of 16 bytes, on GPUs.
bool copies_lines(const CopyProblem& p, const RouteDevice& t) {
    return !t.software && p.shape.size() <= kOuterDims + 1 && has_lines_of(kLineWord, p) &&
           p.numel() * p.item() / kLineWord <= UINT32_MAX / 2;
}

void copy_lines(const CopyProblem& p, at::TensorIteratorBase& iter) {
    shader::LineCopyArgs args{};
    args.to = p.address[0];
    args.from = p.address[1];
    args.line = FastDivider(static_cast<uint32_t>(p.shape[0] * p.item() / kLineWord));
    args.count = static_cast<uint32_t>(p.numel() * p.item() / kLineWord);
    for (int d = 1; d < iter.ndim(); ++d) {
        args.to_stride[d - 1] = p.strides[0][d];
        args.from_stride[d - 1] = p.strides[1][d];
    }
    for (int d = 1; d < kOuterDims; ++d)
        args.size[d - 1] = FastDivider(d < iter.ndim() ? static_cast<uint32_t>(p.shape[d]) : 1);
    shader::line_copy.call({.workgroup = launch_config().workgroup})
        .read(iter.tensor_base(1))
        .write(iter.tensor_base(0))
        .dispatch(args, flat_grid(ceil_div(args.count, shader::kPrefetch), launch_config().workgroup));
}

constexpr int64_t kThreadWord = 8;

// Lines follow one another in memory: 8 bytes a thread.
bool copies_words(const CopyProblem& p, const RouteDevice&) {
    const auto ascends = [](int64_t stride) { return stride >= 0; };
    return p.item() < kThreadWord && has_lines_of(kThreadWord, p) &&
           (p.storage[0] | p.storage[1]) % kThreadWord == 0 && std::ranges::all_of(p.strides[0], ascends) &&
           std::ranges::all_of(p.strides[1], ascends);
}

void copy_words(const CopyProblem& p, at::TensorIteratorBase& iter) {
    at::Tensor to = words_of(iter, 0, kThreadWord / p.item());
    const at::Tensor from = words_of(iter, 1, kThreadWord / p.item());
    auto words = at::TensorIteratorConfig()
                     .set_check_mem_overlap(false)
                     .resize_outputs(false)
                     .add_output(to)
                     .add_const_input(from)
                     .build();
    pointwise(words, rows::copy_bits, {}, ScalarType::Long);
}

// NaN payloads stay, and fewer pipelines are needed.
void copy_bits(const CopyProblem& p, at::TensorIteratorBase& iter) {
    pointwise(iter, rows::copy_bits, {}, integer_of_size(p.item()));
}

constexpr Route<CopyProblem, at::TensorIteratorBase> kRoutes[] = {
    {"convert", converts, convert},
    {"transposed_words", transposes_words, transposed_words_copy},
    {"transposed", transposes, transposed_copy},
    {"lines", copies_lines, copy_lines},
    {"words", copies_words, copy_words},
    {"bits", always, copy_bits},
};

CopyProblem problem_of(const at::TensorIteratorBase& iter) {
    const auto address = [&](int arg) { return reinterpret_cast<uint64_t>(iter.data_ptr(arg)); };
    const auto storage = [&](int arg) {
        return reinterpret_cast<uint64_t>(iter.tensor_base(arg).storage().data());
    };
    return {.to = iter.dtype(0),
            .from = iter.dtype(1),
            .shape = iter.shape(),
            .strides = {iter.strides(0), iter.strides(1)},
            .address = {address(0), address(1)},
            .storage = {storage(0), storage(1)},
            .fits_32_bits = iter.can_use_32bit_indexing()};
}

}  // namespace

std::string to_text(const CopyProblem& p) {
    return c10::str(p.from, " to ", p.to, " ", p.shape, " from ", p.strides[1], " to ", p.strides[0]);
}

const char* copy_route(const CopyProblem& problem, const RouteDevice& device) {
    return first_route(kRoutes, problem, device).name;
}

void pointwise_copy(at::TensorIteratorBase& iter) {
    launch_first("copy", kRoutes, problem_of(iter), iter);
}

}  // namespace anymps::kernels
