// Radix sort in shared memory, by tiles or by passes over whole rows: the launches of
// shaders/sort/radix_sort.slang.
#include "ops/sort/radix_sort.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <anymps/shaders/sort/digits.h>
#include <anymps/shaders/sort/radix_sort.h>

#include <algorithm>

#include "kernels/launch_config.h"
#include "ops/reduction/scan.h"
#include "runtime/device.h"
#include "vulkan/instance.h"

namespace anymps::ops {
namespace {

using at::Tensor;

namespace shader = shaders::radix_sort;

// As in shaders/sort/radix_sort.slang.
constexpr int64_t kDigits = shaders::digits::kDigits;
constexpr uint32_t kItems = 16;  // of a thread, at most
constexpr uint32_t kFewItems = 8;
constexpr uint32_t kMaxThreads = 256;
constexpr uint32_t kMaxSubgroups = 8;
constexpr uint32_t kSharedBytes = 18 << 10;

// Rows up to here are quicker by runs and merges.
constexpr uint32_t kShortestTile = 128;

constexpr kernels::KernelFamily kKernels(shader::kernels_with<shader::RadixArgs>,
                                         {"radix_tiles_8", "radix_tiles_16", "radix_count", "radix_scatter"},
                                         {"_32", "_64"});
enum Step : size_t { kTiles8, kTiles16, kCount, kScatter };

// Positions are uint32 on their way, and of the dtype of `indices` (int32 or int64) at its end. Where that is
// undefined only elements are sorted.
class RadixSort {
  public:
    RadixSort(const Tensor& rows, bool descending, uint32_t bits)
        : rows_(rows), descending_(descending), item_(static_cast<uint32_t>(rows.element_size())) {
        args_.bits = std::min(bits, 8 * item_);
        args_.rows = static_cast<uint64_t>(rows.size(0));
        args_.length = static_cast<uint32_t>(rows.size(1));
    }

    // Without positions these count from 0.
    void sort_tiles(const Tensor& positions, int64_t first, const Tensor& values, const Tensor& indices) {
        // A workgroup of fewer threads has fewer counters, and more of them run at once.
        const uint64_t threads = kernels::ceil_div(args_.length, kFewItems);
        workgroup_ = std::max(subgroup_, kernels::power_of_two(threads, workgroup_));
        const uint32_t items = args_.length > workgroup_ * kFewItems ? kItems : kFewItems;
        args_.first = static_cast<uint32_t>(first);
        args_.kept = static_cast<uint32_t>(values.size(1));
        wide_ = indices.scalar_type() == at::kLong;
        step(items == kItems ? kTiles16 : kTiles8, items, rows_, positions, values, indices, {},
             runtime::Grid::linear(args_.rows));
    }

    // The last of 8-bit digits is written to values and indices, and the one before it to memory beside them,
    // and so on.
    void sort_passes(const Tensor& values, const Tensor& indices) {
        const uint32_t items = item_ == 8 ? kItems : kFewItems;
        args_.tiles = static_cast<uint32_t>(kernels::ceil_div(args_.length, workgroup_ * items));
        const auto grid = runtime::Grid::linear(args_.rows * args_.tiles);
        const Tensor counts =
            at::empty({rows_.size(0), kDigits * args_.tiles}, rows_.options().dtype(at::kInt));
        args_.counts = kernels::address(counts);
        const auto passes = static_cast<uint32_t>(kernels::ceil_div(std::max(1u, args_.bits), 8));
        const Tensor beside = passes > 1 ? at::empty_like(values) : values;
        Tensor index_beside;
        if (indices.defined()) index_beside = at::empty(rows_.sizes(), rows_.options().dtype(at::kInt));
        Tensor from = rows_, from_index;
        for (uint32_t pass = 0; pass < passes; ++pass) {
            const bool final_position = (passes - pass) % 2 == 1, last = pass + 1 == passes;
            const Tensor& to = final_position ? values : beside;
            const Tensor& to_index = final_position ? indices : index_beside;
            args_.shift = 8 * pass;
            step(kCount, 0, from, from_index, to, to_index, counts, grid);
            sums_of_rows(counts);
            wide_ = last && indices.defined() && indices.scalar_type() == at::kLong;
            step(kScatter, items, from, from_index, to, to_index, counts, grid);
            from = to;
            from_index = to_index;
        }
    }

  private:
    // items: of a thread that pass through shared memory.
    void step(Step step, uint32_t items, const Tensor& from, const Tensor& from_index, const Tensor& to,
              const Tensor& to_index, const Tensor& counts, runtime::Grid grid) {
        args_.from = kernels::address(from);
        args_.from_index = kernels::address_or_0(from_index);
        args_.to = kernels::address(to);
        args_.to_index = kernels::address_or_0(to_index);
        const auto counters = static_cast<uint32_t>(workgroup_ / subgroup_ * kDigits);
        kKernels(step, item_ == 8)
            .call({.workgroup = workgroup_,
                   .subgroup = subgroup_,
                   .type = kernels::code(rows_.scalar_type()),
                   .descending = descending_,
                   .first = !from_index.defined(),
                   .wide_index = wide_,
                   .shared_words = std::max(counters, workgroup_ * items),
                   .positions = to_index.defined()})
            .read(from)
            .read(from_index)
            .write(counts)
            .write(to)
            .write(to_index)
            .dispatch(args_, grid);
    }

    const Tensor& rows_;
    bool descending_, wide_ = false;
    uint32_t item_, subgroup_ = runtime::device_info().subgroup_size, workgroup_ = radix_workgroup();
    shader::RadixArgs args_{};
};

}  // namespace

uint32_t radix_workgroup(const kernels::RouteDevice& device) {
    return std::min(kMaxThreads, kMaxSubgroups * device.info->subgroup_size);
}

uint32_t radix_tile(const kernels::RouteDevice& device) {
    return radix_workgroup(device) * kItems;
}

bool supports_radix_sort(uint64_t length, const kernels::RouteDevice& device) {
    const auto& info = *device.info;
    return !device.software && info.shared_memory_bytes >= kSharedBytes &&
           info.max_workgroup_size >= kMaxThreads && info.subgroup_size <= vulkan::kMaxLanes &&
           length > kShortestTile;
}

bool sorts_by_radix(const Tensor& rows) {
    TORCH_CHECK(!rows.is_complex(), "Sort does not support complex dtypes on MPS");
    TORCH_CHECK(rows.size(1) <= UINT32_MAX / 2, "sort: rows of ", rows.size(1),
                " elements are too long for the mps device");
    return supports_radix_sort(static_cast<uint64_t>(rows.size(1)), kernels::route_device());
}

void radix_sort_tiles(const Tensor& rows, const Tensor& positions, bool descending, int64_t first,
                      const Tensor& values, const Tensor& indices, uint32_t bits) {
    RadixSort(rows, descending, bits).sort_tiles(positions, first, values, indices);
}

void radix_sort_passes(const Tensor& rows, bool descending, const Tensor& values, const Tensor& indices,
                       uint32_t bits) {
    RadixSort(rows, descending, bits).sort_passes(values, indices);
}

}  // namespace anymps::ops
