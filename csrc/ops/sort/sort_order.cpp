// The order of rows: radix sort on GPUs, in shared memory where rows are short enough; else runs and merges.
#include "ops/sort/sort_order.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <anymps/shaders/sort/sort.h>

#include <utility>

#include "kernels/flat_grid.h"
#include "kernels/launch_config.h"
#include "ops/sort/radix_select.h"
#include "ops/sort/radix_sort.h"

namespace anymps::ops {
namespace {

using at::Tensor;

namespace shader = shaders::sort;
using shader::kRun;

// Runs and merges: two buffers of keys and positions; every step reads one and writes the other.
Tensor merged_order(const Tensor& rows, bool descending) {
    const uint32_t type = kernels::code(rows.scalar_type());
    const auto n = static_cast<uint64_t>(rows.size(0));
    const auto length = static_cast<uint32_t>(rows.size(1));
    Tensor from = at::empty(rows.sizes(), rows.options().dtype(at::kLong)), to = at::empty_like(from);
    Tensor from_index = at::empty(rows.sizes(), rows.options().dtype(at::kInt));
    Tensor to_index = at::empty_like(from_index);
    const auto step = [&](const shader::SortKernel& kernel, uint32_t width, uint64_t threads) {
        kernel.call({.workgroup = kernels::flat_workgroup(), .type = type, .descending = descending})
            .read(rows)
            .read(from)
            .read(from_index)
            .write(to)
            .write(to_index)
            .dispatch({.input = kernels::address(rows),
                       .from = kernels::address(from),
                       .to = kernels::address(to),
                       .from_index = kernels::address(from_index),
                       .to_index = kernels::address(to_index),
                       .rows = n,
                       .length = length,
                       .width = width},
                      kernels::flat_grid(threads));
        std::swap(from, to);
        std::swap(from_index, to_index);
    };
    step(shader::sort_runs, kRun, n * kernels::ceil_div(length, kRun));
    for (uint64_t width = kRun; width < length; width *= 2) {
        step(shader::sort_merge, static_cast<uint32_t>(width), n * length);
    }
    return from_index;
}

void take(const Tensor& rows, const Tensor& order, int64_t first, const Tensor& values,
          const Tensor& indices) {
    const shader::TakeArgs args{.input = kernels::address(rows),
                                .order = kernels::address(order),
                                .values = kernels::address(values),
                                .indices = kernels::address(indices),
                                .rows = static_cast<uint64_t>(rows.size(0)),
                                .length = static_cast<uint32_t>(rows.size(1)),
                                .first = static_cast<uint32_t>(first),
                                .kept = static_cast<uint32_t>(values.size(1))};
    shader::sort_take
        .call({.workgroup = kernels::flat_workgroup(), .type = kernels::code(rows.scalar_type())})
        .read(rows)
        .read(order)
        .write(values)
        .write(indices)
        .dispatch(args, kernels::flat_grid(args.rows * args.kept));
}

}  // namespace

void sort_rows(const Tensor& rows, bool descending, int64_t first, const Tensor& values,
               const Tensor& indices) {
    if (!sorts_by_radix(rows)) {
        take(rows, merged_order(rows, descending), first, values, indices);
    } else if (rows.size(1) <= radix_tile()) {
        radix_sort_tiles(rows, {}, descending, first, values, indices);
    } else if (first == 0 && values.size(1) <= radix_tile()) {
        select_first(rows, descending, values, indices);
    } else if (values.size(1) == 1 && !descending) {
        const Tensor place = at::full({rows.size(0)}, first, indices.options());
        select_places(rows, place, values.squeeze(1), indices.squeeze(1));
    } else if (values.size(1) == rows.size(1)) {
        radix_sort_passes(rows, descending, values, indices);
    } else {
        take(rows, sorted_order(rows, descending), first, values, indices);
    }
}

Tensor sorted_values(const Tensor& rows) {
    const Tensor values = at::empty_like(rows);
    if (sorts_by_radix(rows) && rows.size(1) > radix_tile()) {
        radix_sort_passes(rows, false, values, {});
    } else {
        sort_rows(rows, false, 0, values, at::empty(rows.sizes(), rows.options().dtype(at::kLong)));
    }
    return values;
}

Tensor sorted_order(const Tensor& rows, bool descending, uint32_t bits, Tensor* sorted) {
    if (!sorts_by_radix(rows)) {
        const Tensor order = merged_order(rows, descending);
        if (sorted != nullptr) *sorted = rows.gather(1, order.to(at::kLong));
        return order;
    }
    const Tensor values = at::empty_like(rows),
                 order = at::empty(rows.sizes(), rows.options().dtype(at::kInt));
    if (rows.size(1) <= radix_tile()) {
        radix_sort_tiles(rows, {}, descending, 0, values, order, bits);
    } else {
        radix_sort_passes(rows, descending, values, order, bits);
    }
    if (sorted != nullptr) *sorted = values;
    return order;
}

}  // namespace anymps::ops
