// One dispatch over many tensors (optimizers, gradient scaling).
#pragma once

#include <ATen/core/Tensor.h>
#include <anymps/shaders/lib/multi_tensor.h>

#include <c10/util/SmallVector.h>

#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernel.h"

namespace anymps::kernels {

using shaders::multi_tensor::MultiTensor;  // first member of the arguments; filled in by the launcher

// How the tensors of one list are used; a list may be empty (its address is then 0), or be words in place of
// tensors: a value a row.
struct TensorListUse {
    at::TensorList tensors;
    bool write;
    bool dense = true;  // false: one element a tensor, read by address alone (e.g. step counts)
    std::span<const uint64_t> words = {};
};

// Groups the rows of `lists` (same length, or empty; the first has tensors) by what `specialize` says of a
// row, which follows from the dtypes of its tensors, and dispatches kernel once a group with specialization
// {workgroup, subgroup, what it says}. args.tensors is filled in. The tensors of a row must have equal sizes
// and strides and no gaps.
class MultiTensorLauncher {
  public:
    using Constants = c10::SmallVector<uint32_t, 12>;
    using Specialize = std::function<Constants(size_t row)>;
    MultiTensorLauncher(std::string kernel, std::vector<TensorListUse> lists, Specialize specialize)
        : kernel_(std::move(kernel)), lists_(std::move(lists)), specialize_(std::move(specialize)) {}

    MultiTensorLauncher(const MultiTensorLauncher&) = delete;
    MultiTensorLauncher& operator=(const MultiTensorLauncher&) = delete;

    // Elements that one workgroup handles.
    static uint32_t group_elements();

    // Tensors outside the lists that the kernel reads or writes; undefined ones are skipped.
    MultiTensorLauncher& read(const at::Tensor& tensor);
    MultiTensorLauncher& write(const at::Tensor& tensor);

    template <class Args>
    void dispatch(const Args& args) {
        static_assert(std::is_trivially_copyable_v<Args> && sizeof(Args) % 8 == 0);
        dispatch_bytes(&args, sizeof(Args));
    }

  private:
    void dispatch_bytes(const void* args, size_t bytes);
    void dispatch_rows(std::span<const size_t> rows, const Constants& constants, const void* args,
                       size_t bytes);
    bool same_types(size_t row, size_t other) const;
    // True where the tensor of a row in this list is one that the first list, which is written, has there,
    // too.
    bool in_place(const TensorListUse& list, size_t row) const;

    std::string kernel_;
    std::vector<TensorListUse> lists_;
    Specialize specialize_;
    std::vector<at::Tensor> reads_, writes_;
};

// The same for a kernel of a shader's header. constants(row): its Constants, whose sizes of workgroup and
// subgroup are filled in.
template <class Args>
class MultiTensorCall : private MultiTensorLauncher {
  public:
    template <class Constants, class OfRow>
    MultiTensorCall(const Kernel<Args, Constants, Arguments::kByPointer>& kernel,
                    std::vector<TensorListUse> lists, const OfRow& constants)
        : MultiTensorLauncher(std::string(kernel.name), std::move(lists), [constants](size_t row) {
              const auto values = Constants(constants(row)).values();
              return MultiTensorLauncher::Constants(values.begin() + 2, values.end());
          }) {}

    MultiTensorCall& read(const at::Tensor& tensor) {
        MultiTensorLauncher::read(tensor);
        return *this;
    }
    MultiTensorCall& write(const at::Tensor& tensor) {
        MultiTensorLauncher::write(tensor);
        return *this;
    }
    void dispatch(const Args& args) { MultiTensorLauncher::dispatch(args); }
};

template <class Args, class Constants, class OfRow>
MultiTensorCall(const Kernel<Args, Constants, Arguments::kByPointer>&, std::vector<TensorListUse>,
                const OfRow&) -> MultiTensorCall<Args>;

}  // namespace anymps::kernels
