#include "ops/conv/pack.h"

#include <anymps/shaders/conv/conv_amax.h>
#include <anymps/shaders/conv/conv_pack.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <optional>

#include "kernels/geometry.h"
#include "kernels/launch_config.h"
#include "ops/conv/text.h"

namespace anymps::ops {
namespace {

using kernels::ceil_div;
using kernels::FastDivider;

constexpr int64_t kVec8 = 8;
constexpr uint32_t kTile = shaders::conv_pack::kTile, kThreads = 256;
constexpr uint64_t kMaxAmaxGroups = 2112;               // each begins and ends with a wait
constexpr int64_t kBlock = shaders::conv_amax::kBlock;  // elements of which conv_amax takes the largest

using shaders::conv_amax::AmaxArgs;
using shaders::conv_pack::PackArgs;

constexpr kernels::KernelFamily kPack(shaders::conv_pack::kernels_with<PackArgs>, {"conv_pack_"},
                                      {"1", "2", "4", "8"});

// True where a dimension's steps are whole numbers of `count` elements.
bool steps_by(int64_t count, int64_t size, int64_t stride) {
    return size == 1 || stride % count == 0;
}

// True where the address of each group of each image is that of a word of `count` elements, of 16 bytes at
// most.
bool begins_words(const ConvTensor& image, int64_t groups, int64_t count) {
    const auto bytes = static_cast<uint64_t>(count * image.memory.element_size());
    return image.memory.is_aligned(std::min(Memory::kAlignment, bytes)) &&
           steps_by(count, image.outer, image.outer_stride) && steps_by(count, groups, image.group_stride);
}

// True where channels, of stride 1, are whole words.
bool has_words_of_channels(const ConvTensor& image, int64_t groups, int64_t count) {
    bool result = image.channels % count == 0 && begins_words(image, groups, count);
    for (int axis = 0; axis < 3; ++axis)
        result = result && steps_by(count, image.sizes[axis], image.strides[axis]);
    return result;
}

bool is_packed(const ConvTensor& image, int64_t groups) {
    return image.is_channels_last() && has_words_of_channels(image, groups, kVec8);
}

uint32_t channels_of_tile(const ConvTensor& image) {
    const auto channels = std::bit_ceil(static_cast<uint64_t>(image.channels));
    // Few positions (of weights) leave more room for channels.
    const auto positions = std::bit_ceil(static_cast<uint64_t>(image.positions()));
    const uint64_t most = std::max<uint64_t>(64, kTile / std::max<uint64_t>(positions, 16));
    return static_cast<uint32_t>(std::clamp<uint64_t>(channels, kVec8, most));
}

// The one stride that leads through all positions, or 0 where there is none: of expanded tensors, too.
int64_t position_stride(const ConvTensor& image) {
    std::optional<int64_t> first;
    int64_t next = 0;
    for (int axis = 2; axis >= 0; --axis) {
        if (image.sizes[axis] == 1) continue;
        if (!first) first = next = image.strides[axis];
        if (image.strides[axis] != next) return 0;
        next *= image.sizes[axis];
    }
    return first.value_or(1);
}

// True where the positions of a channel follow one another.
bool is_flat(const ConvTensor& image) {
    return position_stride(image) == 1;
}

// True where channels are rows of few positions that follow one another: then a tile is a row of words.
bool has_words_of_rows(const ConvTensor& image, int64_t groups) {
    constexpr int64_t kMaxPositions = 64;  // and five of them, lest the tile be too high
    const int64_t positions = image.positions();
    return is_flat(image) && image.channel_stride == positions && positions > 4 &&
           positions <= kMaxPositions && image.channels % kVec8 == 0 && begins_words(image, groups, kVec8);
}

// True where the positions of a channel, which follow one another, are whole words.
bool has_words_of_positions(const ConvTensor& image, int64_t groups, int64_t count) {
    return image.positions() % count == 0 && begins_words(image, groups, count) &&
           steps_by(count, image.channels, image.channel_stride);
}

// How many elements of the source are loaded as one: 8, 4, 2 or 1.
int64_t vector_of(const ConvTensor& image, int64_t groups, bool flat) {
    const bool channels = image.channel_stride == 1;
    if (!channels && !flat) return 1;
    int64_t count = kVec8;
    const auto fits = channels ? has_words_of_channels : has_words_of_positions;
    while (count > 1 && !fits(image, groups, count)) count /= 2;
    return count;
}

// The outer dimension joins the positions where one stride leads through both, and their order stays: of
// weights, whose positions are few.
ConvTensor joined(const ConvTensor& image) {
    const int64_t positions = image.positions();
    const int64_t stride = positions == 1 ? image.outer_stride : position_stride(image);
    if (stride == 0 || image.outer_stride != positions * stride) return image;
    ConvTensor result = image;
    result.sizes = {1, 1, image.outer * positions};
    result.strides = {0, 0, stride};
    result.outer = 1;
    return result;
}

PackArgs pack_args(const ConvTensor& image, int64_t groups, uint32_t tile_channels) {
    const int64_t vec8s = static_cast<int64_t>(ceil_div(image.channels, kVec8));
    const int64_t positions = image.positions();
    PackArgs args{};
    args.from_outer = image.outer_stride;
    args.from_group = image.group_stride;
    args.from_channel = image.channel_stride;
    std::copy(image.strides.begin(), image.strides.end(), args.from_spatial.begin());
    args.height = FastDivider(static_cast<uint32_t>(image.sizes[1]));
    args.width = FastDivider(static_cast<uint32_t>(image.sizes[2]));
    args.positions = static_cast<uint32_t>(positions);
    args.channels = static_cast<uint32_t>(image.channels);
    args.vec8s = static_cast<uint32_t>(vec8s);
    args.tiles_across = FastDivider(static_cast<uint32_t>(ceil_div(positions, kTile / tile_channels)));
    args.tiles_down = FastDivider(static_cast<uint32_t>(ceil_div(vec8s * kVec8, tile_channels)));
    args.groups = FastDivider(static_cast<uint32_t>(groups));
    args.tiles = kernels::group_count(static_cast<uint64_t>(args.tiles_across.divisor) *
                                      args.tiles_down.divisor * groups * image.outer);
    return args;
}

}  // namespace

namespace {

ConvTensor as_blocked(ConvTensor image) {
    image.strides = {image.sizes[1] * image.sizes[2] * 16, image.sizes[2] * 16, 16};
    image.block_stride = image.positions() * 16;
    return image;
}

// How the kernel reads an image.
struct PackShape {
    ConvTensor source;
    bool flat, whole;
    int64_t vector;
    uint32_t tile_channels;

    PackShape(const ConvTensor& image, int64_t groups, bool blocks)
        : source(blocks ? image : joined(image)),
          flat(is_flat(source)),
          vector(vector_of(source, groups, flat)),
          tile_channels(channels_of_tile(source)) {
        whole = vector < 4 && has_words_of_rows(source, groups);
        if (!whole) return;
        tile_channels = kTile / std::bit_ceil(static_cast<uint32_t>(source.positions()));
        vector = kVec8;
    }
};

// The copy, [outer, position, group, padded].
ConvTensor packed_tensor(PlanBuilder& builder, const ConvTensor& image, int64_t padded, Form form) {
    const int64_t positions = image.positions(), groups = builder.problem.groups;
    const auto type = form == Form::ScaledF16 ? DType::F16 : image.memory.type;
    ConvTensor result = image;
    result.memory = builder.temporary({image.outer, positions, groups, padded}, type);
    result.padded = padded;
    result.form = form;
    result.channel_stride = 1;
    result.group_stride = padded;
    result.strides[2] = groups * padded;
    result.strides[1] = image.sizes[2] * result.strides[2];
    result.strides[0] = image.sizes[1] * result.strides[1];
    result.outer_stride = positions * groups * padded;
    return result;
}

ConvTensor add_pack(PlanBuilder& builder, const ConvTensor& image, Form form, bool blocks) {
    assert_that(image.form == Form::Plain);
    const int64_t groups = builder.problem.groups;
    const PackShape shape(image, groups, blocks);
    PackArgs args = pack_args(shape.source, groups, shape.tile_channels);
    if (shape.whole) args.width = FastDivider(args.positions);
    ConvTensor result = packed_tensor(builder, image, args.vec8s * kVec8, form);
    if (blocks && form == Form::Plain) result = as_blocked(result);
    check(result.outer_stride <= std::numeric_limits<int32_t>::max(), "convolution: an image of ",
          result.outer_stride, " elements is too large for the mps device");
    if (image.numel(groups) == 0) return result;
    const bool halves = form == Form::ScaledF16 || form == Form::Bf16x2OrScaledF16;
    PassWriter pass(builder, kPack(0, std::countr_zero(static_cast<uint64_t>(shape.vector))),
                    {.workgroup = kThreads,
                     .item = static_cast<uint32_t>(image.memory.element_size()),
                     .cut = form == Form::Bf16x2 || form == Form::Bf16x2OrScaledF16,
                     .tile_channels = shape.tile_channels,
                     .channels_fast = image.channel_stride == 1,
                     .flat = shape.flat,
                     .halves = halves,
                     .whole = shape.whole,
                     .blocks = blocks});
    pass.address(args.from, image.memory).address(args.to, result.memory);
    if (halves) {
        pass.amaxes(args.amaxes).amax(args.amax_state, image.amax);
        args.amax_count = static_cast<uint32_t>(builder.plan.amax_count);
    }
    pass.read(image.memory).write(result.memory).work(0, builder.sizes(image.memory));
    pass.dispatch(args, runtime::Grid::linear(args.tiles));
    return result;
}

}  // namespace

ConvTensor add_packed(PlanBuilder& builder, const ConvTensor& image, Form form) {
    const bool ready = form == Form::Plain ? is_packed(image, builder.problem.groups) : image.form == form;
    return ready ? image : add_pack(builder, image, form, false);
}

ConvTensor add_blocked(PlanBuilder& builder, const ConvTensor& image, bool scaled) {
    return add_pack(builder, image, scaled ? Form::Bf16x2OrScaledF16 : Form::Plain, true);
}

ConvTensor scaled_blocked(ConvTensor image) {
    return as_blocked(image.as(Form::ScaledF16));
}

namespace {

// The image in the form in which conv_amax has whole blocks and words.
ConvTensor amax_view(const ConvTensor& image, int64_t groups) {
    ConvTensor view = image;
    // Of few positions blocks would be small: those of the outer dimension join them.
    const bool rows = image.channel_stride == image.positions() && is_flat(image) && groups == 1;
    if (image.positions() > 1 && image.positions() < kBlock && rows) {
        // All channels' positions are one row of the outer dimension.
        view.sizes = {1, 1, image.channels * image.positions()};
        view.strides = {0, 0, 1};
        view.channels = image.outer;
        view.channel_stride = image.outer_stride;
        view.outer = 1;
    } else if (image.positions() < kBlock && image.sizes[0] == 1) {
        view.sizes[0] = image.outer;
        view.strides[0] = image.outer_stride;
        view.outer = 1;
    }
    // Channels that only together are words are read as one: of neighbours 16 have still blocks of one
    // position, and every channel has blocks of its own.
    constexpr int64_t kWord = 4;
    const int64_t joined = kWord / std::gcd(view.positions(), kWord);
    if (image.positions() >= 2 * kBlock && rows && view.channels % joined == 0) {
        view.sizes = {1, 1, view.positions() * joined};
        view.channels /= joined;
        view.channel_stride *= joined;
        view.strides = {0, 0, 1};
    }
    return view;
}

}  // namespace

void add_amax(PlanBuilder& builder, const ConvTensor& image, bool sample) {
    const int64_t groups = builder.problem.groups;
    if (image.numel(groups) == 0) return;
    const ConvTensor view = amax_view(image, groups);
    const bool by_channel = view.channel_stride == 1;
    const int64_t step = position_stride(view);
    const int64_t vector = vector_of(view, groups, step == 1) >= 4 ? 4 : 1;
    const int64_t fast = by_channel ? view.channels : view.positions(),
                  slow = by_channel ? view.positions() : view.channels;
    AmaxArgs args{};
    args.from_outer = view.outer_stride;
    args.from_group = view.group_stride;
    args.from_channel = view.channel_stride;
    std::copy(view.strides.begin(), view.strides.end(), args.from_spatial.begin());
    if (step != 0) args.from_spatial[2] = step;
    args.height = FastDivider(static_cast<uint32_t>(view.sizes[1]));
    args.width = FastDivider(static_cast<uint32_t>(view.sizes[2]));
    args.across = FastDivider(static_cast<uint32_t>(ceil_div(fast, kBlock) * kBlock / vector));
    args.down = FastDivider(static_cast<uint32_t>(ceil_div(slow, kBlock)));
    args.groups = FastDivider(static_cast<uint32_t>(groups));
    args.positions = static_cast<uint32_t>(view.positions());
    args.channels = static_cast<uint32_t>(view.channels);
    args.threads = kernels::group_count(static_cast<uint64_t>(args.across.divisor) * args.down.divisor *
                                        groups * view.outer);
    const uint64_t all = ceil_div(args.threads, kThreads);
    const uint64_t most = sample ? builder.device.info.profile->costs->amax_sample_groups : kMaxAmaxGroups;
    const auto workgroups = static_cast<uint32_t>(std::min(all, most));
    args.step = sample ? args.threads : workgroups * kThreads;
    args.spread = sample ? static_cast<uint32_t>(all / workgroups) : 1;
    PassWriter pass(
        builder, vector == 4 ? shaders::conv_amax::conv_amax_4 : shaders::conv_amax::conv_amax_1,
        {.workgroup = kThreads, .channels_fast = by_channel, .flat = step != 0, .sample = sample});
    pass.address(args.from, image.memory).amax(args.amax_state, image.amax);
    pass.read(image.memory).write_amax(image.amax, sample);
    pass.work(0, builder.sizes(image.memory) + (sample ? " sample" : ""));
    pass.dispatch(args, runtime::Grid::linear(workgroups));
}

}  // namespace anymps::ops
