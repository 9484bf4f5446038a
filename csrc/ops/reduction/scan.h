#pragma once

#include <ATen/core/Tensor.h>

namespace anymps::ops {

// Every row of `rows`, integers [n, length] in dense memory, becomes the sums of its first elements, in
// place.
void sums_of_rows(const at::Tensor& rows);

}  // namespace anymps::ops
