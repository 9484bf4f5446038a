#include <anymps/kernels/pointwise_kernels.h>

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

}  // namespace

void pointwise_copy(at::TensorIteratorBase& iter) {
    const ScalarType to = iter.dtype(0), from = iter.dtype(1);
    if (to != from) return pointwise(iter, rows::copy, {}, conversion(to, from));
    if (iter.numel() > 0 && iter.can_use_32bit_indexing() && transposed_copy(iter)) return;
    // Bits: NaN payloads stay, and fewer pipelines are needed.
    pointwise(iter, rows::copy_bits, {}, integer_of_size(c10::elementSize(to)));
}

}  // namespace anymps::kernels
