#include "ops/fft/transform.h"

#include <anymps/shaders/fft/fft.h>
#include <anymps/shaders/fft/fft_line.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/extents.h"
#include "kernels/launch_config.h"
#include "runtime/command_graph.h"
#include "runtime/device.h"

namespace anymps::ops {
namespace {

using at::Tensor;

using kernels::KernelFamily;
using shaders::fft::FftArgs;
namespace flag = shaders::fft_line_io;

constexpr std::array kRadices{2u, 3u, 4u, 5u, 7u, 8u, 16u};
constexpr KernelFamily kRadix(shaders::fft::kernels_with<FftArgs>, {"fft_radix"},
                              {"2", "3", "4", "5", "7", "8", "16"});
// Of powers of two from kMinLinePoints, or from kMinConvolved.
constexpr KernelFamily kLine(shaders::fft_line::kernels_with<FftArgs>, {"fft_line"},
                             {"32", "64", "128", "256", "512", "1024", "2048", "4096"});
constexpr KernelFamily kConvolve(shaders::fft_line::kernels_with<FftArgs>, {"fft_convolve"},
                                 {"256", "512", "1024", "2048", "4096"});
constexpr uint32_t kMinConvolved = 256;

FftArgs neutral_args() {
    const kernels::FastDivider one;
    return {.positions = one, .lines = one, .before = one, .scale = 1};
}

constexpr int64_t kMaxLength = int64_t{1} << 28;
constexpr uint32_t kLargestPrime = 61;  // by the definition; from there on Bluestein's way is shorter

// Of shaders/fft/fft_line.slang.
constexpr uint32_t kLinePoints = 4096, kMinLinePoints = 32;
constexpr uint32_t kPointsAThread = 16, kLineThreads = 256, kMinLineThreads = 64;
// Floats in shared memory of a workgroup that has so many points, with the pads that move lines to other
// banks.
constexpr uint32_t exchanged_floats(uint32_t points, uint32_t lines) {
    return points + points / 16 + lines;
}
constexpr uint32_t kLineShared = sizeof(float) * exchanged_floats(kLinePoints, kLinePoints / kMinLinePoints);

// The radices of the steps, or nothing where a prime factor is too large.
std::vector<uint32_t> radices_of(uint32_t length) {
    if (length == 1) return {1};
    std::vector<uint32_t> radices;
    uint32_t twos = 0, rest = length;
    for (; rest % 2 == 0; rest /= 2) ++twos;
    for (uint32_t p = 3; p <= kLargestPrime; p += 2) {
        for (; rest % p == 0; rest /= p) radices.push_back(p);
    }
    if (rest != 1) return {};
    std::reverse(radices.begin(), radices.end());
    // As few steps as radix 16 allows, of about the same size.
    for (uint32_t steps = (twos + 3) / 4; steps > 0; --steps) {
        const uint32_t bits = (twos + steps - 1) / steps;
        radices.push_back(1u << bits);
        twos -= bits;
    }
    return radices;
}

// The shortest length >= at_least of the form 2^a, 3 2^a or 5 2^a; a power of two where lines fit in a
// workgroup.
uint32_t convolution_length(uint32_t at_least) {
    if (at_least <= kLinePoints && !kernels::launch_config().software) return std::bit_ceil(at_least);
    uint32_t best = std::numeric_limits<uint32_t>::max();
    for (const uint32_t odd : {1u, 3u, 5u}) {
        uint32_t length = odd;
        while (length < at_least) length *= 2;
        best = std::min(best, length);
    }
    return best;
}

uint64_t reciprocal(uint64_t n) {
    return (uint64_t{1} << 62) / n;
}

// True where the lines of a tensor lie closer together than the elements of one line.
bool lines_are_neighbours(const Tensor& tensor, int64_t dim) {
    for (int64_t d = 0; d < tensor.dim(); ++d) {
        if (d != dim && tensor.size(d) > 1 && tensor.stride(d) != 0 && tensor.stride(d) < tensor.stride(dim))
            return true;
    }
    return false;
}

// Complex lines of a length beside those of `like`.
Tensor empty_lines(const Tensor& like, int64_t dim, int64_t length, bool columns) {
    auto sizes = like.sizes().vec();
    sizes.erase(sizes.begin() + dim);
    sizes.insert(columns ? sizes.begin() : sizes.end(), length);
    return at::empty(sizes, like.options().dtype(at::kComplexFloat)).movedim(columns ? 0 : -1, dim);
}

bool in_registers(uint32_t radix) {
    return std::ranges::find(kRadices, radix) != kRadices.end();
}

// One kernel over all lines, `places` threads each, or with line_points whole lines of so many in workgroups.
// header: what depends on neither tensor; tables: what it points to, if the device has just written it.
template <class Constants>
void launch(const kernels::Kernel<FftArgs, Constants, kernels::Arguments::kByPointer>& kernel,
            const Tensor& from, const Tensor& to, int64_t dim, uint32_t positions, const FftArgs& header,
            FftSource source, uint32_t flags, uint32_t line_points = 0, const Tensor& tables = {}) {
    struct {
        FftArgs args;
        std::array<kernels::Dim, kernels::kMaxDims - 1> rest;  // of args.batch
    } memory;
    FftArgs& args = memory.args;
    args = header;
    kernels::Extents batch;
    uint64_t lines = 1;
    for (int64_t d = to.dim() - 1; d >= 0; --d) {
        if (d == dim || to.size(d) == 1) continue;
        batch.push_back(
            {to.size(d),
             {from.stride(d) * kernels::item_bytes(from), to.stride(d) * kernels::item_bytes(to)}});
        lines *= static_cast<uint64_t>(to.size(d));
    }
    TORCH_CHECK(lines <= std::numeric_limits<uint32_t>::max(), "fft: ", lines,
                " transforms at once, and the MPS backend counts to 2^32 - 1");
    collapse(batch);
    args.input = kernels::address(from);
    args.output = kernels::address(to);
    args.threads = lines * positions;
    args.in_step = from.stride(dim) * kernels::item_bytes(from);
    args.out_step = to.stride(dim) * kernels::item_bytes(to);
    args.positions = kernels::FastDivider(positions);
    args.lines = kernels::FastDivider(static_cast<uint32_t>(lines));
    args.dims = static_cast<uint32_t>(batch.size());
    if (args.threads > std::numeric_limits<uint32_t>::max()) flags |= flag::kWide;
    if (lines_are_neighbours(from, dim)) flags |= flag::kColumns;
    kernels::write_dims(batch, reinterpret_cast<char*>(args.batch.data()));
    uint32_t threads = 64;
    const bool whole =
        (flags & flag::kColumns) == 0 && positions % threads == 0 && !kernels::launch_config().software;
    if ((flags & flag::kFirst) != 0 && whole) flags |= flag::kGathered;
    uint64_t groups = kernels::ceil_div(args.threads, threads);
    Constants constants{.workgroup = threads, .source = static_cast<uint32_t>(source), .flags = flags};
    if constexpr (std::is_same_v<Constants, shaders::fft_line::Constants>) {
        // Neighbouring threads read neighbours: of a line, or of many lines that lie side by side.
        threads = (flags & flag::kColumns) != 0
                      ? kLineThreads
                      : std::clamp(line_points / kPointsAThread, kMinLineThreads, kLineThreads);
        const uint32_t points = threads * kPointsAThread, lines_a_group = points / line_points;
        groups = kernels::ceil_div(lines, lines_a_group);
        constants.workgroup = threads;
        constants.exchanged = exchanged_floats(points, lines_a_group);
    }
    kernel.call(constants).read(from).read(to).read(tables).write(to).dispatch_prefix(
        args, offsetof(FftArgs, batch) + batch.size() * sizeof(kernels::Dim), kernels::Grid::linear(groups));
}

// exp(-2 pi i k / n) at n + k for n = 1, 2, 4, ..., 8192; never freed.
const Tensor& line_roots() {
    static const Tensor& table = *new Tensor([] {
        const runtime::OutsideCapture outside;
        constexpr int64_t kMaxRoots = 2 * kLinePoints;
        std::vector<float> roots(2);
        for (int64_t n = 1; n <= kMaxRoots; n *= 2) {
            for (int64_t k = 0; k < n; ++k) {
                const double angle = -2 * M_PI * static_cast<double>(k) / static_cast<double>(n);
                roots.push_back(static_cast<float>(std::cos(angle)));
                roots.push_back(static_cast<float>(std::sin(angle)));
            }
        }
        return at::from_blob(roots.data(), {2 * kMaxRoots, 2}, at::kFloat).to(c10::Device(c10::kMPS));
    }());
    return table;
}

// True where pairs of neighbouring real numbers along dim lie at multiples of 8 bytes.
bool pairs_are_aligned(const Tensor& tensor, int64_t dim) {
    bool aligned = kernels::address(tensor) % 8 == 0 && tensor.stride(dim) == 1;
    for (int64_t d = 0; d < tensor.dim(); ++d) {
        aligned &= d == dim || tensor.size(d) == 1 || tensor.stride(d) % 2 == 0;
    }
    return aligned;
}

// Whether the device transforms lines of so many points, a power of two, in shared memory.
bool fit_in_workgroups(const LineTransform& t, uint32_t points) {
    const auto& device = runtime::device().info();
    if (kernels::launch_config().software || device.max_workgroup_size < kLineThreads ||
        device.shared_memory_bytes < kLineShared || points < kMinLinePoints || points > kLinePoints)
        return false;
    // Lines that lie side by side need a few in a workgroup, for neighbouring threads to read neighbours.
    return !lines_are_neighbours(t.input, t.dim) || points <= kLinePoints / 4;
}

// Whole lines in shared memory, where the length and the device allow it.
bool run_lines(const LineTransform& t) {
    const bool pairs = t.source != FftSource::Complex;
    const auto points = static_cast<uint32_t>(pairs ? t.length / 2 : t.length);
    if (!std::has_single_bit(static_cast<uint64_t>(t.length)) || !fit_in_workgroups(t, points)) return false;
    const FftSource source = t.source == FftSource::Real        ? FftSource::RealPairs
                             : t.source == FftSource::Hermitian ? FftSource::HermitianPairs
                                                                : FftSource::Complex;
    FftArgs header = neutral_args();
    header.length = points;
    header.wanted = source == FftSource::RealPairs ? static_cast<uint32_t>(t.output.size(t.dim)) : points;
    header.scale = static_cast<float>(t.scale);
    header.roots = kernels::address(line_roots());
    uint32_t flags = t.inverse ? flag::kSwapInput | flag::kSwapOutput : 0u;
    if (source == FftSource::HermitianPairs) flags |= flag::kPairOutput;
    if (source == FftSource::Complex && !t.output.is_complex()) flags |= flag::kRealOutput;
    if (pairs && pairs_are_aligned(source == FftSource::RealPairs ? t.input : t.output, t.dim))
        flags |= flag::kAligned;
    launch(kLine(0, std::countr_zero(points / kMinLinePoints)), t.input, t.output, t.dim, 1, header, source,
           flags, points);
    return true;
}

// The step of a transform that follows those whose radices have the product `before`.
void run_step(const LineTransform& t, uint32_t radix, uint32_t before, const Tensor& from, const Tensor& to) {
    const auto length = static_cast<uint32_t>(t.length);
    const bool first = before == 1, last = before * radix == length;
    const bool registers = in_registers(radix);
    FftArgs header = neutral_args();
    header.root_reciprocal = reciprocal(uint64_t{before} * radix);
    header.before = kernels::FastDivider(before);
    header.length = length;
    header.wanted = last ? static_cast<uint32_t>(t.output.size(t.dim)) : length;
    header.radix = radix;
    header.scale = last ? static_cast<float>(t.scale) : 1.0f;
    uint32_t flags = first ? flag::kFirst : 0;
    if (t.inverse) flags |= (first ? flag::kSwapInput : 0) | (last ? flag::kSwapOutput : 0);
    if (last && !t.output.is_complex()) flags |= flag::kRealOutput;
    const size_t row = std::ranges::find(kRadices, radix) - kRadices.begin();
    launch(registers ? kRadix(0, row) : shaders::fft::fft_prime, from, to, t.dim,
           registers ? length / radix : length, header, first ? t.source : FftSource::Complex, flags);
}

void run_steps(const LineTransform& t, const std::vector<uint32_t>& radices) {
    const bool columns = lines_are_neighbours(t.input, t.dim);
    Tensor from = t.input, spare;
    // The kernel of other primes reads what other threads write.
    if (radices.size() == 1 && !in_registers(radices[0]) && t.input.is_alias_of(t.output))
        from = t.input.clone();
    uint32_t before = 1;
    for (size_t i = 0; i < radices.size(); ++i) {
        const bool first = i == 0, last = i + 1 == radices.size();
        const Tensor to = last              ? t.output
                          : spare.defined() ? spare
                                            : empty_lines(t.output, t.dim, t.length, columns);
        run_step(t, radices[i], before, from, to);
        before *= radices[i];
        spare = first ? Tensor() : from;
        from = to;
    }
}

// X[k] = c[k] sum_j (x[j] c[j]) conj(c[k - j]) with the chirp c[k] = exp(-pi i k^2 / n): a convolution, done
// by transforms of a length that has small factors.
class Bluestein {
  public:
    explicit Bluestein(const LineTransform& t)
        : t_(t), length_(convolution_length(2 * static_cast<uint32_t>(t.length) - 1)) {
        header_.length = static_cast<uint32_t>(t.length);
        header_.root_reciprocal = reciprocal(2 * static_cast<uint64_t>(t.length));
    }

    void run() { fit_in_workgroups(t_, length_) ? run_lines() : run_steps(); }

  private:
    // conj(c) both ways from 0, in a line along `dim` of a tensor that is of size 1 elsewhere.
    void write_chirp(const Tensor& to, int64_t dim) {
        header_.wanted = length_;
        launch(shaders::fft::fft_chirp, to, to, dim, length_, header_, FftSource::Complex, flag::kOnes);
    }

    // All of it in one kernel.
    void run_lines() {
        const Tensor tables = at::empty({2, length_}, t_.output.options().dtype(at::kComplexFloat));
        const Tensor chirp = tables.select(0, 0), spectrum = tables.select(0, 1);
        write_chirp(chirp, 0);
        LineTransform{chirp, spectrum, 0, length_, FftSource::Complex, false, 1}.run();
        header_.wanted = static_cast<uint32_t>(t_.output.size(t_.dim));
        header_.scale = static_cast<float>(t_.scale / length_);
        header_.roots = kernels::address(line_roots());
        header_.chirp = kernels::address(chirp);
        header_.spectrum = kernels::address(spectrum);
        launch(kConvolve(0, std::countr_zero(length_ / kMinConvolved)), t_.input, t_.output, t_.dim, 1,
               header_, t_.source, flags_in() | flags_out(), length_, tables);
    }

    void run_steps() {
        const Tensor product =
            empty_lines(t_.output, t_.dim, length_, lines_are_neighbours(t_.input, t_.dim));
        header_.wanted = length_;
        launch(shaders::fft::fft_chirp, t_.input, product, t_.dim, length_, header_, t_.source, flags_in());
        std::vector<int64_t> line(t_.output.dim(), 1);
        line[t_.dim] = length_;
        const Tensor spectrum = at::empty(line, product.options());
        write_chirp(spectrum, t_.dim);
        LineTransform{spectrum, spectrum, t_.dim, length_, FftSource::Complex, false, 1}.run();
        LineTransform{product, product, t_.dim, length_, FftSource::Complex, false, 1}.run();
        launch(shaders::fft::fft_product, spectrum.expand(product.sizes()), product, t_.dim, length_, header_,
               FftSource::Complex, 0);
        LineTransform{product, product, t_.dim, length_, FftSource::Complex, true, 1.0 / length_}.run();
        header_.wanted = static_cast<uint32_t>(t_.output.size(t_.dim));
        header_.scale = static_cast<float>(t_.scale);
        launch(shaders::fft::fft_chirp, product, t_.output, t_.dim, header_.wanted, header_,
               FftSource::Complex, flags_out());
    }

    uint32_t flags_in() const { return t_.inverse ? flag::kSwapInput : 0; }
    uint32_t flags_out() const {
        return (t_.inverse ? flag::kSwapOutput : 0) | (t_.output.is_complex() ? 0 : flag::kRealOutput);
    }

    const LineTransform& t_;
    uint32_t length_;
    FftArgs header_ = neutral_args();
};

}  // namespace

void LineTransform::run() const {
    TORCH_CHECK(length < kMaxLength, "fft: a transform of length ", length,
                " is too long for the MPS backend, which does up to 2^28 - 1");
    if (run_lines(*this)) return;
    const auto radices = radices_of(static_cast<uint32_t>(length));
    radices.empty() ? Bluestein(*this).run() : run_steps(*this, radices);
}

}  // namespace anymps::ops
