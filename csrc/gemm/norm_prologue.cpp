#include "gemm/norm_prologue.h"

#include <anymps/shaders/gemm/gemv.h>
#include <anymps/shaders/gemm/matmul_norm.h>
#include <anymps/shaders/instances.h>

#include <stdexcept>

#include "gemm/gemm_execution.h"
#include "gemm/operand_layout.h"
#include "gemm/simt_lanes.h"
#include "gemm/tiles.h"
#include "kernels/launch_config.h"
#include "runtime/device.h"
#include "runtime/dispatch_time.h"

namespace anymps::gemm {
namespace {

namespace shader = shaders::matmul_norm;
using kernels::ceil_div;
using kernels::Grid;

constexpr uint32_t kThreads = shader::kNormThreads;

// Rows, and k that their shared memory holds.
struct Instance {
    shader::MatmulNormKernel vector, dot;
    int64_t rows, max_k;

    // Those of the rows, of the products and of the sums for the norm.
    uint64_t shared_bytes() const { return (rows * max_k + 8 * kThreads) * sizeof(float); }
};
consteval Instance instance(const shader::MatmulNormKernel& vector, const shader::MatmulNormKernel& dot) {
    for (const auto& i : shader::matmul_norm_vector_instances)
        if (i.kernel == vector.name) return {vector, dot, i.rows, i.max_k};
    throw std::invalid_argument("no kernel has this name");
}
constexpr Instance kInstances[] = {
    instance(shader::matmul_norm_vector_1x1024, shader::matmul_norm_dot_1x1024),
    instance(shader::matmul_norm_vector_1x4096, shader::matmul_norm_dot_1x4096),
    instance(shader::matmul_norm_vector_4x1024, shader::matmul_norm_dot_4x1024)};

const Instance* instance_of(const Gemm& g, const vulkan::DeviceInfo& device) {
    if (!uses_shared_memory(device) || device.max_workgroup_size < kThreads) return nullptr;
    for (const Instance& instance : kInstances) {
        const bool holds = g.m <= instance.rows && g.k <= instance.max_k;
        if (holds && instance.shared_bytes() <= device.shared_memory_bytes) return &instance;
    }
    return nullptr;
}

uint32_t dtype_code(const at::Tensor& tensor) {
    return kernels::code(tensor.defined() ? tensor.scalar_type() : at::kFloat);
}

}  // namespace

bool run_with_norm(const Gemm& g, const NormPrologue& norm) {
    const auto& info = runtime::device().info();
    const Instance* instance = instance_of(g, info);
    if (instance == nullptr || g.batch != 1 || g.m == 0 || g.n == 0 || g.k == 0) return false;
    const BlockLayout layout = vec4_layout(g.b.transposed(), g.n, g.k, 1);
    const bool dot = layout == BlockLayout::KMajorVec;
    const bool contiguous = g.a.column == 1 || g.k == 1;
    if (!contiguous || !(dot || layout == BlockLayout::MnMajorVec)) return false;
    for (const at::Tensor* t : {&norm.weight, &norm.bias})
        if (t->defined() && !t->is_contiguous()) return false;

    const shader::MatmulNormArgs args{.gemm = gemm_args(g, kernels::Compute::F32),
                                      .a = kernels::address(*g.a.tensor),
                                      .b = kernels::address(*g.b.tensor),
                                      .weight = kernels::address_or_0(norm.weight),
                                      .bias = kernels::address_or_0(norm.bias),
                                      .a_m = stride32(g.a.row, g.m),
                                      .b_n = stride32(g.b.column, g.n),
                                      .b_k = stride32(g.b.row, g.k),
                                      .eps = static_cast<float>(norm.eps)};
    const uint32_t lanes = simt_lanes(info);
    auto call = (dot ? instance->dot : instance->vector)
                    .call({.workgroup = kThreads,
                           .subgroup = lanes,
                           .type_a = dtype_code(*g.a.tensor),
                           .type_b = dtype_code(*g.b.tensor),
                           .type_out = dtype_code(*g.out.tensor),
                           .layout_b = static_cast<uint32_t>(layout),
                           .has_self = g.self.tensor != nullptr,
                           .wide_out = has_vec4_rows(args.gemm, g),
                           .epilogue = g.epilogue.steps.code,
                           .type_weight = dtype_code(norm.weight),
                           .type_bias = dtype_code(norm.bias),
                           .centered = norm.centered});
    call.read(*g.a.tensor).read(*g.b.tensor).read(norm.weight).read(norm.bias);
    declare_results(call, g);
    runtime::note_dispatch({.operations = 2.0 * g.m * g.n * g.k});
    const uint32_t columns = dot ? kThreads / lanes * shader::kDotColumns : shaders::gemv::kVectorColumns;
    call.dispatch_pointer(args, Grid::linear(ceil_div(static_cast<uint64_t>(g.n), columns)));
    return true;
}

}  // namespace anymps::gemm
