#include "ops/sparse/spmm.h"

#include <anymps/shaders/sparse/spmm.h>

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>

#include "kernels/flat_grid.h"
#include "kernels/geometry.h"

namespace anymps::ops {
namespace {

namespace shader = shaders::spmm;

// What every SpMM kernel gets.
struct Product {
    at::Tensor out, pointers, columns, values, dense;
    shader::SpmmArgs args;

    Product(const char* op, const at::Tensor& pointers, const at::Tensor& columns, const at::Tensor& values,
            const at::Tensor& dense)
        : out(at::empty({pointers.numel() - 1, dense.size(1)}, values.options())),
          pointers(pointers.contiguous()),
          columns(columns.contiguous()),
          // Products are asked with conjugate views as they are.
          values(values.resolve_conj().resolve_neg().contiguous()),
          dense(dense.resolve_conj().resolve_neg()) {
        if (out.numel() == 0) return;
        TORCH_CHECK(out.numel() <= UINT32_MAX, op, ": ", out.numel(),
                    " elements of a product are too many for the mps device");
        const auto error = runtime::encoder().error_slot(op);
        args = {.out = kernels::address(out),
                .pointers = kernels::address(this->pointers),
                .columns = kernels::address(this->columns),
                .values = kernels::address(this->values),
                .dense = kernels::address(this->dense),
                .error = error.address,
                .row_stride = this->dense.stride(0),
                .column_stride = this->dense.stride(1),
                .nnz = values.numel(),
                .inner = dense.size(0),
                .count = static_cast<uint32_t>(out.numel()),
                .width = kernels::FastDivider(static_cast<uint32_t>(dense.size(1))),
                .error_code = error.code};
    }

    template <class Kernel>
    typename Kernel::Call call(const Kernel& kernel, Reduce reduce = {}) const {
        auto call = kernel.call({.workgroup = kernels::flat_workgroup(),
                                 .type = kernels::code(out.scalar_type()),
                                 .index_type = kernels::code(columns.scalar_type()),
                                 .reduce = static_cast<uint32_t>(reduce)});
        call.read(pointers).read(columns).read(values).read(dense).write(out);
        return call;
    }
};

const shader::SpmmKernel& kernel_of(at::ScalarType type) {
    if (at::isComplexType(type)) return shader::spmm_c64;
    if (at::isFloatingType(type)) return shader::spmm_f32;
    return type == at::kLong ? shader::spmm_i64 : shader::spmm_i32;
}

}  // namespace

at::Tensor spmm(const char* op, const at::Tensor& pointers, const at::Tensor& columns,
                const at::Tensor& values, const at::Tensor& dense) {
    if (values.numel() == 0) return at::zeros({pointers.numel() - 1, dense.size(1)}, values.options());
    const Product product(op, pointers, columns, values, dense);
    if (product.out.numel() > 0)
        product.call(kernel_of(values.scalar_type()))
            .dispatch(product.args, kernels::flat_grid(product.args.count));
    return product.out;
}

at::Tensor spmm_reduce(const char* op, Reduce reduce, const at::Tensor& pointers, const at::Tensor& columns,
                       const at::Tensor& values, const at::Tensor& dense, const at::Tensor& arg) {
    const Product product(op, pointers, columns, values, dense);
    if (product.out.numel() == 0) return product.out;
    const shader::SpmmReduceArgs args{.of = product.args, .arg = kernels::address_or_0(arg)};
    product.call(shader::spmm_reduce, reduce)
        .write(arg)
        .dispatch(args, kernels::flat_grid(product.args.count));
    return product.out;
}

void check_same_type(const at::Tensor& a, const at::Tensor& b) {
    TORCH_CHECK(a.scalar_type() == b.scalar_type(), "expected scalar type ", a.scalar_type(), " but found ",
                b.scalar_type());
}

at::Tensor& scale_and_add(const at::Tensor& self, const at::Tensor& product, const at::Scalar& beta,
                          const at::Scalar& alpha, at::Tensor& out) {
    if (beta.toComplexDouble() == 0.0)
        return out.copy_(alpha.toComplexDouble() == 1.0 ? product : product.mul(alpha));
    return at::add_out(out, beta.toComplexDouble() == 1.0 ? self : self.mul(beta), product, alpha);
}

}  // namespace anymps::ops
