#include "ops/conv/wgrad.h"

#include <anymps/shaders/conv/conv_wgrad.h>
#include <anymps/shaders/conv/conv_wgrad_pack.h>

#include <algorithm>
#include <limits>

#include "kernels/geometry.h"
#include "kernels/launch_config.h"
#include "ops/conv/text.h"

namespace anymps::ops {
namespace {

using kernels::ceil_div;
using kernels::FastDivider;

using shaders::conv_wgrad_1x1::Wgrad1x1Args;
using shaders::conv_wgrad_3x3::Wgrad3x3Args;
using shaders::conv_wgrad_pack::WgradPackArgs;

struct WgradTile {
    int64_t rows, columns;
    uint32_t threads;
    int64_t occupancy;    // workgroups of a compute unit
    int64_t shares;       // subgroups that have slices of a workgroup's k
    double microseconds;  // of 16 k
};
// Times order split-K factors by the same reasons on every device.
constexpr WgradTile kWgrad3x3{64, 144, 96, 4, 1, 0.45};
constexpr WgradTile kWgrad1x1{64, 64, 256, 1, 8, 0.2};

constexpr int64_t kChannels = 16;  // of a tile of lines
constexpr int64_t kPanel = 64;     // rows that the packed gradient is padded to
constexpr int64_t kPrefetch = 1;   // steps of 16 k that tiles read beyond the last one
constexpr uint32_t kThreads = 256;
constexpr int64_t kEach = shaders::conv_wgrad_pack::kEach;  // pieces of a thread that packs

// The positions of all images, each in its frame.
struct Frame {
    int64_t line, lines;  // quads of a line, lines of an image
    int64_t steps;        // of 16 k, an even number
    int64_t quads;        // of a channel, with a line before and one behind

    explicit Frame(const ConvTensor& y)
        : line(ceil_div(y.sizes[2], 4)),
          lines(y.sizes[1] + 1),
          steps(ceil_div(y.outer * lines * line, 8) * 2),
          quads(4 * (steps + kPrefetch) + 2 * line) {}
};

WgradPackArgs pack_args(const ConvTensor& image, const Frame& frame) {
    WgradPackArgs args{};
    args.image_stride = image.outer_stride;
    args.channel_stride = image.channel_stride;
    args.line_stride = image.strides[1];
    args.line = FastDivider(static_cast<uint32_t>(frame.line));
    args.lines = FastDivider(static_cast<uint32_t>(frame.lines));
    args.images = static_cast<uint32_t>(image.outer);
    args.channels = static_cast<uint32_t>(image.channels);
    args.height = static_cast<uint32_t>(image.sizes[1]);
    args.width = static_cast<uint32_t>(image.sizes[2]);
    return args;
}

// True where the address of every channel of every image, and line, is that of a word of so many elements.
bool begins_words(const ConvTensor& image, int64_t count) {
    const auto whole = [&](int64_t size, int64_t stride) { return size == 1 || stride % count == 0; };
    return image.memory.is_aligned(static_cast<uint64_t>(count * image.memory.element_size())) &&
           whole(image.outer, image.outer_stride) && whole(image.channels, image.channel_stride);
}

uint32_t vector_of(const ConvTensor& image) {
    for (const uint32_t count : {4u, 2u})
        if (begins_words(image, count) && image.strides[1] % count == 0 && image.sizes[2] % count == 0)
            return count;
    return 1;
}

void add_pack(PlanBuilder& builder, const shaders::conv_wgrad_pack::WgradPackKernel& kernel,
              const ConvTensor& image, WgradPackArgs args, const Memory& to, bool swapped) {
    PassWriter pass(builder, kernel, {.workgroup = kThreads, .vector = vector_of(image), .swapped = swapped});
    pass.address(args.to, to).address(args.from, image.memory);
    pass.read(image.memory).write(to).work(0, builder.sizes(image.memory));
    pass.dispatch(args, runtime::Grid::linear(ceil_div(args.count, kThreads * kEach)));
}

Memory add_packed_image(PlanBuilder& builder, const ConvTensor& x, const Frame& frame) {
    const Memory to = builder.temporary({x.channels / 2, frame.quads, 2, 8}, x.memory.type);
    WgradPackArgs args = pack_args(x, frame);
    args.pieces = FastDivider(static_cast<uint32_t>(2 * frame.quads));
    args.count = static_cast<uint32_t>(x.channels * frame.quads);
    args.first = static_cast<uint32_t>(frame.line);
    add_pack(builder, shaders::conv_wgrad_pack::conv_wgrad_pack_image, x, args, to, false);
    return to;
}

Memory add_packed_gradient(PlanBuilder& builder, const ConvTensor& y, const Frame& frame) {
    const int64_t blocks = ceil_div(y.channels, kPanel) * (kPanel / 16);
    const Memory to =
        builder.temporary({blocks * frame.steps + kPrefetch * (kPanel / 16), 16, 16}, y.memory.type);
    WgradPackArgs args = pack_args(y, frame);
    args.pieces = FastDivider(static_cast<uint32_t>(32 * frame.steps));
    args.count = static_cast<uint32_t>(blocks * frame.steps * 32);
    add_pack(builder, shaders::conv_wgrad_pack::conv_wgrad_pack_gradient, y, args, to,
             builder.device.layout(y.memory.type).a_swapped);
    return to;
}

// Steps of a split-K slice: slices fill the compute units in whole waves; each has its start-up, and its sums
// to be written and read again.
int64_t choose_steps_per_split(const vulkan::DeviceInfo& device, const WgradTile& tile, int64_t tiles,
                               int64_t results, int64_t steps) {
    constexpr int64_t kMaxElements = 16 << 20, kShortest = 16;
    constexpr double kStart = 3, kBytesOfMicrosecond = 3e6;
    const int64_t multiple = 2 * tile.shares, longest = kLongestSum / 16 * tile.shares;
    const int64_t wave = device.compute_units() * tile.occupancy;
    const int64_t most = std::max<int64_t>(1, kMaxElements / results);
    const int64_t least = std::clamp<int64_t>(ceil_div(steps, longest), 1, most);
    const vulkan::DeviceProfile& profile = *device.profile;
    const double step = tile.microseconds * profile.unit_scale(vulkan::Rate::MatrixF16);
    int64_t best = 0;
    double best_time = std::numeric_limits<double>::max();
    for (int64_t split_k = least; split_k == least || (split_k <= most && split_k * kShortest <= steps);
         ++split_k) {
        const int64_t steps_per_split = ceil_div(ceil_div(steps, split_k), multiple) * multiple;
        const auto waves = static_cast<double>(ceil_div(tiles * split_k, wave));
        const double time =
            waves * (kStart + static_cast<double>(steps_per_split) * step) +
            static_cast<double>(split_k * results) * 8 / kBytesOfMicrosecond * profile.bytes_scale();
        if (time >= best_time) continue;
        best = steps_per_split;
        best_time = time;
    }
    return best;
}

bool multiplies_16_bits(const ConvDevice& device, const ImplicitGemm& plain) {
    const gemm::Arithmetic arithmetic = arithmetic_of(device, plain);
    return arithmetic == gemm::Arithmetic::F16 || arithmetic == gemm::Arithmetic::BF16;
}

// An operand of the kernel, and the field of its arguments.
struct Operand {
    uint64_t& field;
    const Memory& memory;
};

// Split-K wgrad and its reduction.
template <class Kernel, class Args>
void add_wgrad(PlanBuilder& builder, const Kernel& kernel, const WgradTile& tile, ImplicitGemm c, Args& args,
               int64_t steps, const Operand& first, const Operand& second) {
    const int64_t rows = c.strided.rows, columns = c.g.count();
    const int64_t tiles = ceil_div(rows, tile.rows) * ceil_div(columns, tile.columns);
    const int64_t steps_per_split =
        choose_steps_per_split(builder.device.info, tile, tiles, rows * columns, steps);
    const int64_t split_k = ceil_div(steps, steps_per_split);
    const Memory sums = builder.temporary({split_k, 1, rows, columns}, DType::F32);
    args.steps_per_split = static_cast<uint32_t>(steps_per_split);
    const gemm::FragmentLayout layout = builder.device.layout(multiplied_type(first.memory.type));
    PassWriter pass(builder, kernel,
                    {.workgroup = tile.threads,
                     .subgroup = 32,
                     .a_swapped = layout.a_swapped,
                     .b_swapped = layout.b_swapped,
                     .acc_swapped = layout.acc_swapped});
    pass.address(first.field, first.memory).address(second.field, second.memory);
    pass.address(args.workspace, sums);
    pass.work(
        2.0 * static_cast<double>(rows * columns) * c.k.count(),
        text_of(builder.sizes(first.memory), " * ", builder.sizes(second.memory), ", split-K ", split_k));
    pass.read(first.memory).read(second.memory).write(sums);
    pass.dispatch(args, runtime::Grid::linear(tiles * split_k));
    c.g.channels_last = true;
    add_reduce_split_k(builder, c, sums, split_k);
}

}  // namespace

bool supports_wgrad_3x3(const Direction& d, const ConvDevice& device) {
    constexpr Dim3 kOnes{1, 1, 1};
    constexpr int64_t kMinRows = 32;
    if (d.kind != Direction::Kind::Wgrad) return false;
    const ConvTensor &y = d.first, &x = d.second;
    const ImplicitGemm& plain = d.plain[0];
    if (plain.groups != 1 || plain.g.spatial != Dim3{1, 3, 3} || !multiplies_16_bits(device, plain))
        return false;
    if (d.params.stride != kOnes || d.params.dilation != kOnes || d.params.padding != Dim3{0, 1, 1})
        return false;
    if (x.sizes[0] != 1 || x.sizes != y.sizes || x.sizes[2] == 1) return false;
    if (x.strides[2] != 1 || y.strides[2] != 1) return false;
    if (x.channels % kChannels != 0 || y.channels < kMinRows || plain.k.count() == 0) return false;
    constexpr int64_t kMaxPieces = int64_t{1} << 30;  // of 16 bytes
    if (Frame(y).quads * std::max(x.channels, y.channels + kPanel) > kMaxPieces) return false;
    return device.holds_fragments(multiplied_type(x.memory.type));
}

ConvTensor add_wgrad_3x3(PlanBuilder& builder, const Direction& d, const ConvTensor&) {
    const ConvTensor &y = d.first, &x = d.second;
    const Frame frame(y);
    const Memory image = add_packed_image(builder, x, frame),
                 gradient = add_packed_gradient(builder, y, frame);
    Wgrad3x3Args args{};
    args.rows = static_cast<uint32_t>(y.channels);
    args.channels = static_cast<uint32_t>(x.channels);
    args.steps = static_cast<uint32_t>(frame.steps);
    args.quads = static_cast<uint32_t>(frame.quads);
    args.line = static_cast<uint32_t>(frame.line);
    const bool half = x.memory.type == DType::F16;
    add_wgrad(builder,
              half ? shaders::conv_wgrad::conv_wgrad_3x3_64x144_f16
                   : shaders::conv_wgrad::conv_wgrad_3x3_64x144_bf16,
              kWgrad3x3, d.plain[0], args, frame.steps, {args.gradient, gradient}, {args.image, image});
    return y;
}

bool supports_wgrad_1x1(const Direction& d, const ConvDevice& device) {
    constexpr int64_t kStep = 16, kSteps = 32;
    if (d.kind != Direction::Kind::Wgrad) return false;
    const ConvTensor &y = d.first, &x = d.second;
    const ImplicitGemm& plain = d.plain[0];
    if (plain.groups != 1 || plain.g.positions() != 1 || x.sizes != y.sizes) return false;
    if (y.channels < kWgrad1x1.rows || x.channels < kWgrad1x1.columns || x.channels % 4 != 0) return false;
    const int64_t positions = y.positions(), k = plain.k.count();
    if (positions < kStep || positions % 4 != 0 || k == 0 || k % kSteps != 0 || k > INT32_MAX) return false;
    const auto follow = [](const ConvTensor& image) {
        int64_t next = 1;
        for (int axis = 2; axis >= 0; --axis) {
            if (image.sizes[axis] != 1 && image.strides[axis] != next) return false;
            next *= image.sizes[axis];
        }
        return begins_words(image, 4);
    };
    if (!follow(x) || !follow(y)) return false;
    // Products for each element: where many, tiles in shared memory are no slower. They need floats' ranges,
    // and packed images where positions are no whole words of eight.
    const vulkan::PlanCosts& costs = *device.info.profile->costs;
    const double most = costs.wgrad_max_intensity, max_with_pass = costs.wgrad_max_intensity_pass;
    const bool floats = x.memory.type == DType::F32;
    if (intensity(y.channels, x.channels) > (floats || positions % 8 != 0 ? max_with_pass : most))
        return false;
    const bool pairs = floats && device.may_use_scaled_f16(y.memory.type) &&
                       arithmetic_of(device, plain) == gemm::Arithmetic::BF16x2;
    return (pairs || multiplies_16_bits(device, plain)) &&
           device.holds_fragments(multiplied_type(x.memory.type));
}

ConvTensor add_wgrad_1x1(PlanBuilder& builder, const Direction& d, const ConvTensor&) {
    const ConvTensor &y = d.first, &x = d.second;
    const ImplicitGemm& plain = d.plain[0];
    const auto bytes = [&](int64_t elements) {
        return static_cast<uint64_t>(elements * x.memory.element_size());
    };
    Wgrad1x1Args args{};
    args.left_pitch = bytes(y.channel_stride);
    args.right_pitch = bytes(x.channel_stride);
    args.left_image = bytes(y.outer_stride);
    args.right_image = bytes(x.outer_stride);
    args.rows = static_cast<uint32_t>(y.channels);
    args.columns = static_cast<uint32_t>(x.channels);
    args.positions = static_cast<uint32_t>(y.positions());
    args.k = static_cast<uint32_t>(plain.k.count());
    const auto type = x.memory.type;
    add_wgrad(builder,
              type == DType::F32   ? shaders::conv_wgrad::conv_wgrad_1x1_64x64_floats
              : type == DType::F16 ? shaders::conv_wgrad::conv_wgrad_1x1_64x64_f16
                                   : shaders::conv_wgrad::conv_wgrad_1x1_64x64_bf16,
              kWgrad1x1, plain, args, plain.k.count() / 16, {args.left, y.memory}, {args.right, x.memory});
    return y;
}

}  // namespace anymps::ops
