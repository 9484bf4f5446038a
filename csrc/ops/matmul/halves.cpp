#include "ops/matmul/halves.h"

#include <ATen/ops/empty.h>

#include "kernels/geometry.h"
#include "kernels/kernel_call.h"
#include "kernels/team.h"
#include "runtime/device.h"
#include "runtime/kernel_profile.h"

namespace anymps::ops {
namespace {

using kernels::ceil_div;

// As in shaders/matmul_pack.slang.
constexpr uint32_t kThreads = 256, kAhead = 4;
struct MatmulPackArgs {
    uint64_t to, norms, from;
    int64_t from_batch, from_row, from_k;
    kernels::FastDivider rows;
    uint32_t count, k, granules;
};

// Seconds on an H200: of a multiplication more without halves, of an element cut, of the dispatches.
constexpr double kGain = 29e-15, kCut = 3.4e-12, kDispatches = 20e-6;

constexpr double kLeastK = 64;
constexpr double kMostElements = 1 << 28;  // that get a copy, of a gigabyte then

}  // namespace

bool worth_halves(double batch, double m, double n, double k) {
    if (runtime::device().info().is_software) return k > 0;
    if (k < kLeastK || batch * (m + n) * k > kMostElements) return false;
    return batch * m * n * k * kGain > batch * (m + n) * k * kCut + kDispatches;
}

Halves::Halves(const Matrices& factor, int64_t batch, int64_t rows, int64_t k, uint32_t parts) {
    const int64_t copies = factor.batch == 0 ? 1 : batch;
    const auto granules = static_cast<uint32_t>(ceil_div(k, kStep) * kStep / 8);
    const int64_t norms = ceil_div(copies * rows, 4) * 4;
    tensor = at::empty({norms + copies * rows * granules * 4 * parts}, factor.tensor->options());
    address = kernels::address(tensor) + norms * 4;
    norms_before = static_cast<uint32_t>(norms / 4);
    pitch = granules * parts;
    rows_a_batch = copies == 1 ? 0 : static_cast<uint32_t>(rows);

    MatmulPackArgs args{};
    args.to = address;
    args.norms = kernels::address(tensor);
    args.from = kernels::address(*factor.tensor);
    args.from_batch = factor.batch;
    args.from_row = factor.row;
    args.from_k = factor.column;
    args.rows = kernels::FastDivider(static_cast<uint32_t>(rows));
    args.count = static_cast<uint32_t>(copies * rows);
    args.k = static_cast<uint32_t>(k);
    args.granules = granules;
    const bool along = factor.column == 1;
    const bool words =
        along && k % 4 == 0 && factor.row % 4 == 0 && factor.batch % 4 == 0 && args.from % 16 == 0;
    // A subgroup a row, or eight neighbouring rows a workgroup where these follow one another.
    const uint32_t lanes = along && granules > kAhead * 32 ? kThreads : 32;
    if (runtime::profiling())
        runtime::profile_work(0, c10::str(copies, " of ", rows, " x ", k, along ? "" : ", across"));
    kernels::KernelCall("matmul_pack",
                        {kThreads, 0, parts == 2, along, words, lanes, granules <= kAhead * lanes})
        .read(*factor.tensor)
        .write(tensor)
        .dispatch(args, kernels::Grid::linear(ceil_div(args.count, kThreads / lanes)));
}

}  // namespace anymps::ops
