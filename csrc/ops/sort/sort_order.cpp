// The order of rows: radix sort on GPUs, in shared memory where rows are short enough; else runs and merges.
#include "ops/sort/sort_order.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <anymps/shaders/sort/sort.h>

#include <utility>

#include "kernels/flat_grid.h"
#include "kernels/launch_config.h"
#include "kernels/route.h"
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

struct SortRows {
    const Tensor &rows, &values, &indices;
};

SortProblem problem_of(const Tensor& rows, bool descending, int64_t first, int64_t kept) {
    sorts_by_radix(rows);  // raises for what nothing here sorts
    return {.rows = static_cast<uint64_t>(rows.size(0)),
            .length = static_cast<uint64_t>(rows.size(1)),
            .first = static_cast<uint64_t>(first),
            .kept = static_cast<uint64_t>(kept),
            .descending = descending};
}

bool is_short(const SortProblem& p, const kernels::RouteDevice& device) {
    return !supports_radix_sort(p.length, device);
}

bool fits_a_tile(const SortProblem& p, const kernels::RouteDevice& device) {
    return p.length <= radix_tile(device);
}

// Each row assumes that those above it have been asked.
constexpr kernels::Route<SortProblem, const SortRows> kPositions[] = {
    {"merge", is_short,
     [](const SortProblem& p, const SortRows& c) {
         take(c.rows, merged_order(c.rows, p.descending), static_cast<int64_t>(p.first), c.values, c.indices);
     }},
    {"radix_tiles", fits_a_tile,
     [](const SortProblem& p, const SortRows& c) {
         radix_sort_tiles(c.rows, {}, p.descending, static_cast<int64_t>(p.first), c.values, c.indices);
     }},
    {"select_first",
     [](const SortProblem& p, const kernels::RouteDevice& device) {
         return p.first == 0 && p.kept <= radix_tile(device);
     },
     [](const SortProblem& p, const SortRows& c) {
         select_first(c.rows, p.descending, c.values, c.indices);
     }},
    {"select_positions",
     [](const SortProblem& p, const kernels::RouteDevice&) { return p.kept == 1 && !p.descending; },
     [](const SortProblem& p, const SortRows& c) {
         const Tensor position =
             at::full({c.rows.size(0)}, static_cast<int64_t>(p.first), c.indices.options());
         select_positions(c.rows, position, c.values.squeeze(1), c.indices.squeeze(1));
     }},
    {"radix_passes", [](const SortProblem& p, const kernels::RouteDevice&) { return p.kept == p.length; },
     [](const SortProblem& p, const SortRows& c) {
         radix_sort_passes(c.rows, p.descending, c.values, c.indices);
     }},
    {"order, take", kernels::always,
     [](const SortProblem& p, const SortRows& c) {
         take(c.rows, sorted_order(c.rows, p.descending), static_cast<int64_t>(p.first), c.values, c.indices);
     }},
};

// Elements in order, where they are wanted, and their positions.
struct SortOrder {
    const Tensor& rows;
    uint32_t bits;
    bool wants_values;
    Tensor values, order;

    void make() {
        values = at::empty_like(rows);
        order = at::empty(rows.sizes(), rows.options().dtype(at::kInt));
    }
};

constexpr kernels::Route<SortProblem, SortOrder> kOrder[] = {
    {"merge", is_short,
     [](const SortProblem& p, SortOrder& c) {
         c.order = merged_order(c.rows, p.descending);
         if (c.wants_values) c.values = c.rows.gather(1, c.order.to(at::kLong));
     }},
    {"radix_tiles", fits_a_tile,
     [](const SortProblem& p, SortOrder& c) {
         c.make();
         radix_sort_tiles(c.rows, {}, p.descending, 0, c.values, c.order, c.bits);
     }},
    {"radix_passes", kernels::always,
     [](const SortProblem& p, SortOrder& c) {
         c.make();
         radix_sort_passes(c.rows, p.descending, c.values, c.order, c.bits);
     }},
};

}  // namespace

std::string to_text(const SortProblem& p) {
    return c10::str(p.rows, " rows of ", p.length, ", ", p.kept, " from ", p.first,
                    p.descending ? " descending" : "");
}

const char* sort_route(const SortProblem& problem, const kernels::RouteDevice& device) {
    return first_route(kPositions, problem, device).name;
}

const char* sorted_order_route(const SortProblem& problem, const kernels::RouteDevice& device) {
    return first_route(kOrder, problem, device).name;
}

void sort_rows(const Tensor& rows, bool descending, int64_t first, const Tensor& values,
               const Tensor& indices) {
    const SortRows call{rows, values, indices};
    kernels::launch_first("sort", kPositions, problem_of(rows, descending, first, values.size(1)), call);
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
    SortOrder call{rows, bits, sorted != nullptr, {}, {}};
    kernels::launch_first("sorted_order", kOrder, problem_of(rows, descending, 0, rows.size(1)), call);
    if (sorted != nullptr) *sorted = call.values;
    return call.order;
}

}  // namespace anymps::ops
