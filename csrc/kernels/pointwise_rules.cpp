#include "kernels/pointwise_rules.h"

namespace anymps::kernels {

at::TensorIterator unary_to_bool_op(const at::TensorBase& out, const at::TensorBase& a) {
    auto config = at::TensorIteratorConfig();
    config.check_all_same_dtype(false).add_output(out).add_const_input(a);
    if (!out.defined()) config.declare_static_dtype(at::kBool);
    return config.build();
}

namespace {

at::TensorIterator complex_to_real_op(const at::TensorBase& out, const at::TensorBase& a) {
    const auto real = c10::toRealValueType(a.scalar_type());
    TORCH_CHECK(!out.defined() || c10::canCast(real, out.scalar_type()), "result type ", real,
                " can't be cast to the desired output type ", out.scalar_type());
    auto config = at::TensorIteratorConfig();
    config.check_all_same_dtype(false).add_output(out).add_const_input(a);
    if (!out.defined()) config.declare_static_dtype(real);
    return config.build();
}

}  // namespace

at::TensorIterator unary_to_real_op(at::TensorBase& out, const at::TensorBase& a) {
    return a.is_complex() ? complex_to_real_op(out, a) : at::TensorIterator::unary_op(out, a);
}

at::TensorIterator unary_float_to_real_op(at::TensorBase& out, const at::TensorBase& a) {
    return a.is_complex() ? complex_to_real_op(out, a) : at::TensorIterator::unary_float_op(out, a);
}

at::TensorIterator binary_same_op(const at::TensorBase& out, const at::TensorBase& a,
                                  const at::TensorBase& b) {
    return at::TensorIteratorConfig().add_output(out).add_const_input(a).add_const_input(b).build();
}

at::TensorIterator ternary_op(const at::TensorBase& out, const at::TensorBase& a, const at::TensorBase& b,
                              const at::TensorBase& c) {
    return at::TensorIteratorConfig()
        .add_output(out)
        .add_const_input(a)
        .add_const_input(b)
        .add_const_input(c)
        .allow_cpu_scalars(true)
        .promote_inputs_to_common_dtype(true)
        .cast_common_dtype_to_outputs(true)
        .enforce_safe_casting_to_output(true)
        .build();
}

}  // namespace anymps::kernels
