// Launches of kernels that walk rows of several tensors along one dimension (shaders/lib/team.slang).
#pragma once

#include <ATen/core/TensorBase.h>
#include <anymps/shaders/lib/team.h>

#include <array>
#include <initializer_list>

#include "kernels/extents.h"
#include "kernels/kernel.h"

namespace anymps::kernels {

// A tensor of a row kernel, by slot. Strides may be 0 (expanded). Undefined ones get the address 0.
struct RowTensor {
    enum Use { kRead, kWrite };
    const at::TensorBase& tensor;
    Use use = kRead;
    bool one_a_row = false;  // the kernel reads or writes a single element of it for each row
};

// The arguments of such a kernel, and the constants of shaders/lib/team.slang.
class RowLaunch {
  public:
    using Call = TypedCall<shaders::team::RowArgs, Arguments::kByPointer>;

    RowLaunch(int64_t dim, std::initializer_list<RowTensor> tensors, std::array<float, 4> params);

    template <class Constants>
    void set(Constants& constants) const {
        constants.workgroup = workgroup_;
        constants.subgroup = subgroup_;
        constants.type0 = type_[0];
        constants.type1 = type_[1];
        constants.type2 = type_[2];
        constants.type3 = type_[3];
        constants.type4 = type_[4];
        constants.type5 = type_[5];
        constants.lanes = lanes_;
        constants.vector = vector_;
        constants.columns = columns_;
        constants.cached = cached_;
    }
    void dispatch(Call call, std::initializer_list<RowTensor> tensors) const;

  private:
    uint32_t workgroup_, subgroup_, lanes_, vector_, columns_, cached_;
    std::array<uint32_t, kMaxSlots> type_{};
    uint64_t groups_;
    struct {
        shaders::team::RowArgs header;
        std::array<Dim, kMaxDims - 1> rest;  // of header.kept
    } args_;
};

// Runs a kernel over the rows along `dim` of tensors of one shape (the first one's; 0-d is one row of one
// element). params and the constants besides those of shaders/lib/team.slang are the kernel's own.
template <class Constants>
void launch_rows(const Kernel<shaders::team::RowArgs, Constants, Arguments::kByPointer>& kernel, int64_t dim,
                 std::initializer_list<RowTensor> tensors, std::array<float, 4> params,
                 std::type_identity_t<Constants> constants) {
    if (tensors.begin()->tensor.numel() == 0) return;
    const RowLaunch launch(dim, tensors, params);
    launch.set(constants);
    launch.dispatch(kernel.call(constants), tensors);
}

}  // namespace anymps::kernels
