// Host side of kernels that walk rows of several tensors along one dimension (shaders/lib/team.slang).
#pragma once

#include <ATen/core/TensorBase.h>

#include <array>
#include <initializer_list>
#include <string_view>

namespace anymps::kernels {

// A tensor of a row kernel, by slot. Strides may be 0 (expanded). Undefined ones get the address 0.
struct RowTensor {
    enum Use { kRead, kWrite };
    const at::TensorBase& tensor;
    Use use = kRead;
    bool one_a_row = false;  // the kernel reads or writes a single element of it for each row
};

// Runs a kernel over the rows along `dim` of tensors of one shape (the first one's; 0-d is one row of one
// element). params and the specialization constants from id 12 up are the kernel's own.
void launch_rows(std::string_view kernel, int64_t dim, std::initializer_list<RowTensor> tensors,
                 std::array<float, 4> params = {}, std::initializer_list<uint32_t> specialization = {});

}  // namespace anymps::kernels
