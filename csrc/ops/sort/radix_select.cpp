// Places of the sorted order of long rows without sorting them: the digits of a key from the highest on.
#include "ops/sort/radix_select.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/zeros.h>
#include <anymps/shaders/sort/digits.h>
#include <anymps/shaders/sort/radix_select.h>

#include "kernels/launch_config.h"
#include "ops/reduction/scan.h"
#include "ops/sort/radix_sort.h"
#include "runtime/device.h"

namespace anymps::ops {
namespace {

using at::Tensor;

namespace shader = shaders::radix_select;

constexpr int64_t kDigits = shaders::digits::kDigits;
constexpr kernels::KernelFamily kKernels(shader::kernels_with<shader::SelectArgs>,
                                         {"select_count", "select_position", "select_tally", "select_write"},
                                         {"_32", "_64"});
enum Step : size_t { kCount, kPosition, kTally, kWrite };

class RadixSelect {
  public:
    RadixSelect(const Tensor& rows, bool descending)
        : rows_(rows),
          descending_(descending),
          item_(static_cast<uint32_t>(rows.element_size())),
          states_(at::zeros({rows.size(0), 2}, rows.options().dtype(at::kLong))),
          histogram_(at::zeros({rows.size(0), kDigits}, rows.options().dtype(at::kInt))) {
        args_.input = kernels::address(rows);
        args_.states = kernels::address(states_);
        args_.histogram = kernels::address(histogram_);
        args_.rows = static_cast<uint64_t>(rows.size(0));
        args_.length = static_cast<uint32_t>(rows.size(1));
        args_.tiles = static_cast<uint32_t>(kernels::ceil_div(args_.length, radix_tile()));
    }

    // Finds the keys of the places that this tensor is given before; [n] int64.
    Tensor ranks() const { return states_.select(1, 1); }
    void find_keys() {
        for (uint32_t digit = item_; digit-- > 0;) {
            args_.shift = 8 * digit;
            run(kernel(kCount), args_.tiles, digit + 1 == item_, {}, {});
            run(shader::select_digit, 1, false, {}, {});
        }
    }

    // The first position of each key, uint32 [n].
    void find_positions(const Tensor& positions) {
        args_.positions = kernels::address(positions);
        run(kernel(kPosition), args_.tiles, false, positions, {});
    }

    // What comes before the place and what is at it: values [n, kept] and positions, uint32, in the order of
    // the row but for the equal ones, which are last.
    void write(const Tensor& values, const Tensor& positions) {
        const Tensor counts = at::empty({2 * rows_.size(0), args_.tiles}, histogram_.options());
        args_.kept = static_cast<uint32_t>(values.size(1));
        args_.counts = kernels::address(counts);
        run(kernel(kTally), args_.tiles, false, counts, {});
        sums_of_rows(counts);
        args_.values = kernels::address(values);
        args_.positions = kernels::address(positions);
        run(kernel(kWrite), args_.tiles, false, values, positions, counts);
    }

  private:
    const shader::SelectKernel& kernel(Step step) const { return kKernels(step, item_ == 8); }

    void run(const shader::SelectKernel& kernel, uint64_t groups_a_row, bool first, const Tensor& out,
             const Tensor& out_too, const Tensor& counts = {}) {
        kernel
            .call({.workgroup = radix_workgroup(),
                   .subgroup = runtime::device_info().subgroup_size,
                   .type = kernels::code(rows_.scalar_type()),
                   .descending = descending_,
                   .first = first})
            .read(rows_)
            .read(counts)
            .write(states_)
            .write(histogram_)
            .write(out)
            .write(out_too)
            .dispatch(args_, kernels::Grid::linear(args_.rows * groups_a_row));
    }

    const Tensor& rows_;
    bool descending_;
    uint32_t item_;
    Tensor states_, histogram_;
    shader::SelectArgs args_{};
};

}  // namespace

void select_positions(const Tensor& rows, const Tensor& ranks, const Tensor& values, const Tensor& indices) {
    RadixSelect select(rows, false);
    select.ranks().copy_(ranks);
    select.find_keys();
    const Tensor positions = at::full({rows.size(0)}, -1, rows.options().dtype(at::kInt));
    select.find_positions(positions);
    indices.copy_(positions);
    values.copy_(rows.gather(1, indices.unsqueeze(1)).squeeze(1));
}

void select_first(const Tensor& rows, bool descending, const Tensor& values, const Tensor& indices) {
    RadixSelect select(rows, descending);
    select.ranks().fill_(values.size(1) - 1);
    select.find_keys();
    const Tensor unsorted = at::empty(values.sizes(), values.options());
    const Tensor positions = at::empty(values.sizes(), indices.options().dtype(at::kInt));
    select.write(unsorted, positions);
    radix_sort_tiles(unsorted, positions, descending, 0, values, indices);
}

}  // namespace anymps::ops
