// softmax, log_softmax and their gradients: one kernel each way, any dimension, any strides.
#include <ATen/WrapDimUtils.h>
#include <anymps/ops/softmax/softmax_ops.h>
#include <anymps/shaders/softmax/softmax.h>
#include <anymps/shaders/softmax/softmax_long.h>
#include <anymps/shaders/softmax/softmax_rows.h>
#include <c10/core/ScalarType.h>

#include "kernels/check_dtype.h"
#include "kernels/launch_config.h"
#include "kernels/route.h"
#include "kernels/row_launcher.h"
#include "ops/softmax/softmax_routes.h"
#include "runtime/device.h"
#include "vulkan/instance.h"

namespace anymps::ops {

namespace {

namespace long_rows = shaders::softmax_long;
constexpr auto kWrite = kernels::RowTensor::kWrite;

void check_floating(const Tensor& self, bool log) {
    kernels::check_floating(self.scalar_type(), log ? "log_" : "", "softmax_kernel_impl");
}

constexpr kernels::KernelFamily kLongRows(long_rows::kernels_with<long_rows::LongRows>,
                                          {"softmax_long_forward", "softmax_long_backward"},
                                          {"_f32", "_f32_persistent", "_16"});

decltype(kLongRows)::Call long_rows_call(bool backward, const Tensor& like, bool log) {
    constexpr uint32_t kThreads = 512, kMaxThreads = 1024;
    constexpr int64_t kKept = 7 * 4;  // floats of a thread: vectors of kernels _f32_persistent by four
    const auto& device = runtime::device().info();
    const auto& t = kernels::launch_config();
    const bool floats = like.scalar_type() == at::kFloat;
    const bool kept = floats && !device.profile->excludes(kLongRows(backward, 1).name);
    // Twice as many threads keep twice as much.
    const bool wide = kept && device.profile->row_threads >= kMaxThreads &&
                      like.size(-1) > kThreads * kKept && device.max_workgroup_size >= kMaxThreads;
    const uint32_t most = wide ? kMaxThreads : kThreads;
    const uint32_t workgroup = device.max_workgroup_size >= most ? most : t.workgroup;
    return kLongRows(backward, kept     ? 1
                               : floats ? 0
                                        : 2)
        .call({.workgroup = workgroup,
               .subgroup = t.subgroup,
               .type0 = kernels::code(like.scalar_type()),
               .lanes = workgroup,
               .log = log});
}

// The forward pass, or with `output` the backward one of grad.
struct Softmax {
    const Tensor& input;   // self, or grad
    const Tensor* output;  // of the forward pass
    int64_t dim;
    const Tensor& result;
    bool log;
};

SoftmaxProblem problem_of(const Softmax& c) {
    const Tensor& self = c.input;
    const auto type = self.scalar_type();
    const uint64_t address = kernels::address(self);
    const auto dense = [&](const Tensor& t) { return t.is_contiguous() && t.scalar_type() == type; };
    const auto offset = [&](const Tensor& t) { return kernels::address(t) - address; };
    const auto size = static_cast<uint64_t>(self.dim() == 0 ? 1 : self.size(c.dim));
    return {.type = type,
            .rows = size == 0 ? 0 : static_cast<uint64_t>(self.numel()) / size,
            .size = size,
            .backward = c.output != nullptr,
            .innermost = self.dim() != 0 && c.dim == self.dim() - 1,
            .contiguous = dense(self) && dense(c.result) && (!c.output || dense(*c.output)),
            .aligned_alike = (offset(c.result) | (c.output ? offset(*c.output) : 0)) % 16 == 0,
            .aligned = address % 16 == 0};
}

constexpr uint64_t kVectorsOfLane = 2;  // of persistent_subgroup, where a row has few

// Rows of 16-bit elements in vectors of 16 bytes, which lanes of a subgroup keep in registers.
bool fits_a_subgroup(const SoftmaxProblem& p, const kernels::RouteDevice& t) {
    constexpr uint64_t kMaxOfRow = 64;  // elements of a lane
    return !t.software && !p.backward && c10::elementSize(p.type) == 2 && p.innermost && p.size % 8 == 0 &&
           p.size != 0 && p.size <= kMaxOfRow * t.subgroup && p.rows <= UINT32_MAX && p.contiguous &&
           p.aligned_alike && p.aligned;
}

void launch_subgroup(const SoftmaxProblem&, const Softmax& p) {
    const auto& t = kernels::launch_config();
    const int64_t size = p.input.size(p.dim);
    const shaders::softmax_rows::SoftmaxRows args{.x = kernels::address(p.input),
                                                  .y = kernels::address(p.result),
                                                  .rows = static_cast<uint32_t>(p.input.numel() / size),
                                                  .size = static_cast<uint32_t>(size)};
    const uint64_t vectors = args.size / 8;
    const uint32_t lanes = kernels::power_of_two(kernels::ceil_div(vectors, kVectorsOfLane), t.subgroup);
    const auto of_lane = static_cast<uint32_t>(kernels::ceil_div(vectors, lanes));
    shaders::softmax_rows::softmax_rows
        .call({.workgroup = t.workgroup,
               .subgroup = t.subgroup,
               .type0 = kernels::code(p.input.scalar_type()),
               .lanes = lanes,
               .cached = of_lane,
               .log = p.log})
        .read(p.input)
        .write(p.result)
        .dispatch(args, kernels::Grid::linear(kernels::ceil_div(args.rows, t.workgroup / lanes)));
}

// Rows that a workgroup cannot keep in registers, of tensors whose vectors of 16 bytes lie alike.
bool has_long_rows(const SoftmaxProblem& p, const kernels::RouteDevice& t) {
    const uint64_t kept = p.size % 4 == 0 ? t.costs().softmax_long_vectors : t.costs().softmax_long_row;
    return !t.software && p.innermost && p.size > kept && p.size <= UINT32_MAX && p.contiguous &&
           p.aligned_alike;
}

void launch_workgroup(const SoftmaxProblem&, const Softmax& p) {
    long_rows::LongRows args{.size = static_cast<uint32_t>(p.input.size(p.dim))};
    args.x = kernels::address(p.input);
    args.y = kernels::address(p.output ? *p.output : p.result);
    if (p.output) args.grad = kernels::address(p.result);
    auto call = long_rows_call(p.output != nullptr, p.input, p.log);
    call.read(p.input);
    if (p.output) call.read(*p.output);
    call.write(p.result).dispatch(args, kernels::Grid::linear(p.input.numel() / p.input.size(p.dim)));
}

void launch_row_team(const SoftmaxProblem&, const Softmax& p) {
    if (p.output) {
        kernels::launch_rows(shaders::softmax::softmax_backward, p.dim,
                             {{p.input}, {*p.output}, {p.result, kWrite}}, {}, {.log = p.log});
    } else {
        kernels::launch_rows(shaders::softmax::softmax_forward, p.dim, {{p.input}, {p.result, kWrite}}, {},
                             {.log = p.log});
    }
}

constexpr kernels::Route<SoftmaxProblem, const Softmax> kRoutes[] = {
    {"persistent_subgroup", fits_a_subgroup, launch_subgroup},
    {"long_rows", has_long_rows, launch_workgroup},
    {"row_team", kernels::always, launch_row_team},
};

void launch(const Softmax& call) {
    kernels::launch_first(call.log ? "log_softmax" : "softmax", kRoutes, problem_of(call), call);
}

void forward(const Tensor& self, int64_t dim, const Tensor& out, bool log) {
    check_floating(self, log);
    if (self.numel() > 0) launch({self, nullptr, at::maybe_wrap_dim(dim, self.dim()), out, log});
}

void backward(const Tensor& grad, const Tensor& output, int64_t dim, const Tensor& grad_input, bool log) {
    check_floating(grad, log);
    launch({grad, &output, at::maybe_wrap_dim(dim, grad.dim()), grad_input, log});
}

}  // namespace

std::string to_text(const SoftmaxProblem& p) {
    return c10::str(p.type, " ", p.rows, " rows of ", p.size, p.innermost ? "" : " strided",
                    p.backward ? " backward" : "");
}

const char* softmax_route(const SoftmaxProblem& problem, const kernels::RouteDevice& device) {
    return first_route(kRoutes, problem, device).name;
}

// half_to_float: f16 in, f32 out; the kernel converts as it stores.
ANYMPS_ROW(_softmax_out, forward(self, dim, out, false))
ANYMPS_ROW(_log_softmax_out, forward(self, dim, out, true))
ANYMPS_ROW(_softmax_backward_data_out, backward(grad_output, output, dim, grad_input, false))
ANYMPS_ROW(_log_softmax_backward_data_out, backward(grad_output, output, dim, out, true))

}  // namespace anymps::ops
