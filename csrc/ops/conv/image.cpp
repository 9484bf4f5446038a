#include "ops/conv/image.h"

#include <anymps/shaders/conv_pack.h>
#include <anymps/shaders/conv_range.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <string>

#include "kernels/geometry.h"
#include "kernels/team.h"
#include "runtime/kernel_profile.h"

namespace anymps::ops {
namespace {

using at::Tensor;
using kernels::ceil_div;
using kernels::FastDivider;

constexpr int64_t kGranule = 8;
constexpr uint32_t kTile = shaders::conv_pack::kTile, kThreads = 256;
constexpr uint64_t kMostRangeGroups = 2112;              // each begins and ends with a wait
constexpr uint64_t kGuessGroups = 132;                   // a wave of an H200: as short as a kernel can be
constexpr int64_t kBlock = shaders::conv_range::kBlock;  // elements of which conv_range takes the largest

using shaders::conv_pack::PackArgs;
using shaders::conv_range::RangeArgs;

constexpr kernels::KernelFamily kPack(shaders::conv_pack::kernels_with<PackArgs>, {"conv_pack_"},
                                      {"1", "2", "4", "8"});

void set_axes(Image& image) {
    const int64_t dims = image.tensor.dim() - 2;
    for (int64_t i = 0; i < dims; ++i) {
        image.sizes[3 - dims + i] = image.tensor.size(2 + i);
        image.strides[3 - dims + i] = image.tensor.stride(2 + i);
    }
}

// True where a dimension's steps are whole numbers of `count` elements.
bool steps_by(int64_t count, int64_t size, int64_t stride) {
    return size == 1 || stride % count == 0;
}

// True where the address of each group of each image is that of a word of `count` elements, of 16 bytes at
// most.
bool begins_words(const Image& image, int64_t groups, int64_t count) {
    const auto bytes = static_cast<uint64_t>(std::min<int64_t>(16, count * image.tensor.element_size()));
    return kernels::address(image.tensor) % bytes == 0 && steps_by(count, image.outer, image.outer_stride) &&
           steps_by(count, groups, image.group_stride);
}

// True where channels, of stride 1, are whole words.
bool has_words_of_channels(const Image& image, int64_t groups, int64_t count) {
    bool result = image.channels % count == 0 && begins_words(image, groups, count);
    for (int axis = 0; axis < 3; ++axis)
        result = result && steps_by(count, image.sizes[axis], image.strides[axis]);
    return result;
}

bool is_packed(const Image& image, int64_t groups) {
    return image.channels_fastest() && has_words_of_channels(image, groups, kGranule);
}

uint32_t channels_of_tile(const Image& image) {
    const auto channels = std::bit_ceil(static_cast<uint64_t>(image.channels));
    // Few positions (of weights) leave more room for channels.
    const auto positions = std::bit_ceil(static_cast<uint64_t>(image.positions()));
    const uint64_t most = std::max<uint64_t>(64, kTile / std::max<uint64_t>(positions, 16));
    return static_cast<uint32_t>(std::clamp<uint64_t>(channels, kGranule, most));
}

// The one stride that leads through all positions, or 0 where there is none.
int64_t position_stride(const Image& image) {
    int64_t first = 0, next = 0;
    for (int axis = 2; axis >= 0; --axis) {
        if (image.sizes[axis] == 1) continue;
        if (first == 0) first = next = image.strides[axis];
        if (image.strides[axis] != next) return 0;
        next *= image.sizes[axis];
    }
    return first == 0 ? 1 : first;
}

// True where the positions of a channel follow one another.
bool is_flat(const Image& image) {
    return position_stride(image) == 1;
}

// True where channels are rows of few positions that follow one another: then a tile is a row of words.
bool has_words_of_rows(const Image& image, int64_t groups) {
    constexpr int64_t kMostPositions = 64;  // and five of them, lest the tile be too high
    const int64_t positions = image.positions();
    return is_flat(image) && image.channel_stride == positions && positions > 4 &&
           positions <= kMostPositions && image.channels % kGranule == 0 &&
           begins_words(image, groups, kGranule);
}

// True where the positions of a channel, which follow one another, are whole words.
bool has_words_of_positions(const Image& image, int64_t groups, int64_t count) {
    return image.positions() % count == 0 && begins_words(image, groups, count) &&
           steps_by(count, image.channels, image.channel_stride);
}

// How many elements of the source are loaded as one: 8, 4, 2 or 1.
int64_t vector_of(const Image& image, int64_t groups, bool flat) {
    const bool channels = image.channel_stride == 1;
    if (!channels && !flat) return 1;
    int64_t count = kGranule;
    const auto fits = channels ? has_words_of_channels : has_words_of_positions;
    while (count > 1 && !fits(image, groups, count)) count /= 2;
    return count;
}

// The outer dimension joins the positions where one stride leads through both, and their order stays: of
// weights, whose positions are few.
Image joined(const Image& image) {
    const int64_t positions = image.positions();
    const int64_t stride = positions == 1 ? image.outer_stride : position_stride(image);
    if (stride == 0 || image.outer_stride != positions * stride) return image;
    Image result = image;
    result.sizes = {1, 1, image.outer * positions};
    result.strides = {0, 0, stride};
    result.outer = 1;
    return result;
}

PackArgs pack_args(const Image& image, int64_t groups, uint32_t tile_channels) {
    const int64_t granules = static_cast<int64_t>(ceil_div(image.channels, kGranule));
    const int64_t positions = image.positions();
    PackArgs args{};
    args.from = kernels::address(image.tensor);
    args.from_outer = image.outer_stride;
    args.from_group = image.group_stride;
    args.from_channel = image.channel_stride;
    std::copy(image.strides.begin(), image.strides.end(), args.from_spatial.begin());
    args.height = FastDivider(static_cast<uint32_t>(image.sizes[1]));
    args.width = FastDivider(static_cast<uint32_t>(image.sizes[2]));
    args.positions = static_cast<uint32_t>(positions);
    args.channels = static_cast<uint32_t>(image.channels);
    args.granules = static_cast<uint32_t>(granules);
    args.tiles_across = FastDivider(static_cast<uint32_t>(ceil_div(positions, kTile / tile_channels)));
    args.tiles_down = FastDivider(static_cast<uint32_t>(ceil_div(granules * kGranule, tile_channels)));
    args.groups = FastDivider(static_cast<uint32_t>(groups));
    args.tiles = kernels::group_count(static_cast<uint64_t>(args.tiles_across.divisor) *
                                      args.tiles_down.divisor * groups * image.outer);
    return args;
}

}  // namespace

Image image_of(const Tensor& tensor, int64_t groups) {
    const int64_t channels = tensor.size(1) / groups;
    Image image{tensor,          tensor.size(0), channels, tensor.stride(0), channels * tensor.stride(1),
                tensor.stride(1)};
    set_axes(image);
    return image;
}

Image weight_of(const Tensor& tensor, int64_t groups) {
    const int64_t outer = tensor.size(0) / groups;
    Image image{tensor, outer, tensor.size(1), tensor.stride(0), outer * tensor.stride(0), tensor.stride(1)};
    set_axes(image);
    return image;
}

Image transposed(Image weight) {
    std::swap(weight.outer, weight.channels);
    std::swap(weight.outer_stride, weight.channel_stride);
    weight.padded = weight.channels;
    return weight;
}

Image Image::as(Form way) const {
    Image result = *this;
    if (form == way) return result;
    if (form == Form::Plain) {
        result.form = way == Form::Halves ? Form::Scaled : Form::Plain;
        return result;
    }
    TORCH_INTERNAL_ASSERT(form == Form::PairsOrHalves);
    result.form = way;
    if (way == Form::Halves) result.tensor = tensor.view(at::kHalf);
    return result;
}

namespace {

Image by_blocks(Image image) {
    image.strides = {image.sizes[1] * image.sizes[2] * 16, image.sizes[2] * 16, 16};
    image.block_stride = image.positions() * 16;
    return image;
}

Image pack(const Image& image, int64_t groups, Form form, const HalfRanges* ranges, bool blocks) {
    TORCH_INTERNAL_ASSERT(image.form == Form::Plain);
    const Image source = blocks ? image : joined(image);
    const bool flat = is_flat(source);
    int64_t vector = vector_of(source, groups, flat);
    const bool whole = vector < 4 && has_words_of_rows(source, groups);
    uint32_t tile_channels = channels_of_tile(source);
    if (whole) {
        tile_channels = kTile / std::bit_ceil(static_cast<uint32_t>(source.positions()));
        vector = kGranule;
    }
    PackArgs args = pack_args(source, groups, tile_channels);
    if (whole) args.width = FastDivider(args.positions);
    const int64_t padded = args.granules * kGranule, positions = image.positions();
    const auto type = form == Form::Halves ? at::kHalf : image.tensor.scalar_type();
    const Tensor memory =
        at::empty({image.outer, positions, groups, padded}, image.tensor.options().dtype(type));
    Image result = image;
    result.tensor = memory;
    result.padded = padded;
    result.form = form;
    result.channel_stride = 1;
    result.group_stride = padded;
    result.strides[2] = groups * padded;
    result.strides[1] = image.sizes[2] * result.strides[2];
    result.strides[0] = image.sizes[1] * result.strides[1];
    result.outer_stride = positions * groups * padded;
    if (blocks && form == Form::Plain) result = by_blocks(result);
    TORCH_CHECK(result.outer_stride <= std::numeric_limits<int32_t>::max(), "convolution: an image of ",
                result.outer_stride, " elements is too large for the mps device");
    args.to = kernels::address(memory);
    const bool halves = form == Form::Halves || form == Form::PairsOrHalves;
    if (halves) {
        args.ranges = ranges->address();
        args.range_count = static_cast<uint32_t>(ranges->count);
        args.range = image.range;
    }
    if (memory.numel() == 0) return result;
    const bool cut = form == Form::Pairs || form == Form::PairsOrHalves;
    auto call = kPack(0, std::countr_zero(static_cast<uint64_t>(vector)))
                    .call({.workgroup = kThreads,
                           .item = static_cast<uint32_t>(image.tensor.element_size()),
                           .cut = cut,
                           .tile_channels = tile_channels,
                           .channels_fast = image.channel_stride == 1,
                           .flat = flat,
                           .halves = halves,
                           .whole = whole,
                           .blocks = blocks});
    if (runtime::profiling()) runtime::profile_work(0, c10::str(image.tensor.sizes()));
    if (halves) ranges->read_by(call);
    call.read(image.tensor).write(memory).dispatch(args, kernels::Grid::linear(args.tiles));
    return result;
}

}  // namespace

Image packed(const Image& image, int64_t groups, Form form, const HalfRanges* ranges) {
    const bool ready = form == Form::Plain ? is_packed(image, groups) : image.form == form;
    return ready ? image : pack(image, groups, form, ranges, false);
}

Image in_blocks(const Image& image, const HalfRanges* ranges) {
    return pack(image, 1, ranges != nullptr ? Form::PairsOrHalves : Form::Plain, ranges, true);
}

Image halves_in_blocks(Image image) {
    return by_blocks(image.as(Form::Halves));
}

namespace {

// The image in the form in which conv_range has whole blocks and words.
Image ranged(const Image& image, int64_t groups) {
    Image seen = image;
    // Of few positions blocks would be small: those of the outer dimension join them.
    const bool rows = image.channel_stride == image.positions() && is_flat(image) && groups == 1;
    if (image.positions() > 1 && image.positions() < kBlock && rows) {
        // All channels' positions are one row of the outer dimension.
        seen.sizes = {1, 1, image.channels * image.positions()};
        seen.strides = {0, 0, 1};
        seen.channels = image.outer;
        seen.channel_stride = image.outer_stride;
        seen.outer = 1;
    } else if (image.positions() < kBlock && image.sizes[0] == 1) {
        seen.sizes[0] = image.outer;
        seen.strides[0] = image.outer_stride;
        seen.outer = 1;
    }
    // Channels that only together are words are read as one: of neighbours 16 have still blocks of one
    // position, and every channel has blocks of its own.
    constexpr int64_t kWord = 4;
    const int64_t joined = kWord / std::gcd(seen.positions(), kWord);
    if (image.positions() >= 2 * kBlock && rows && seen.channels % joined == 0) {
        seen.sizes = {1, 1, seen.positions() * joined};
        seen.channels /= joined;
        seen.channel_stride *= joined;
        seen.strides = {0, 0, 1};
    }
    return seen;
}

void look(const Image& image, int64_t groups, bool guess) {
    if (image.tensor.numel() == 0) return;
    const Image seen = ranged(image, groups);
    const bool by_channel = seen.channel_stride == 1;
    const int64_t step = position_stride(seen);
    const int64_t vector = vector_of(seen, groups, step == 1) >= 4 ? 4 : 1;
    const int64_t fast = by_channel ? seen.channels : seen.positions(),
                  slow = by_channel ? seen.positions() : seen.channels;
    RangeArgs args{};
    args.from = kernels::address(seen.tensor);
    args.range = image.range;
    args.from_outer = seen.outer_stride;
    args.from_group = seen.group_stride;
    args.from_channel = seen.channel_stride;
    std::copy(seen.strides.begin(), seen.strides.end(), args.from_spatial.begin());
    if (step != 0) args.from_spatial[2] = step;
    args.height = FastDivider(static_cast<uint32_t>(seen.sizes[1]));
    args.width = FastDivider(static_cast<uint32_t>(seen.sizes[2]));
    args.across = FastDivider(static_cast<uint32_t>(ceil_div(fast, kBlock) * kBlock / vector));
    args.down = FastDivider(static_cast<uint32_t>(ceil_div(slow, kBlock)));
    args.groups = FastDivider(static_cast<uint32_t>(groups));
    args.positions = static_cast<uint32_t>(seen.positions());
    args.channels = static_cast<uint32_t>(seen.channels);
    args.threads = kernels::group_count(static_cast<uint64_t>(args.across.divisor) * args.down.divisor *
                                        groups * seen.outer);
    const uint64_t all = ceil_div(args.threads, kThreads);
    const auto workgroups = static_cast<uint32_t>(std::min(all, guess ? kGuessGroups : kMostRangeGroups));
    args.step = guess ? args.threads : workgroups * kThreads;
    args.spread = guess ? static_cast<uint32_t>(all / workgroups) : 1;
    auto call =
        (vector == 4 ? shaders::conv_range::conv_range_4 : shaders::conv_range::conv_range_1)
            .call({.workgroup = kThreads, .channels_fast = by_channel, .flat = step != 0, .guess = guess});
    if (runtime::profiling()) runtime::profile_work(0, c10::str(image.tensor.sizes(), guess ? " guess" : ""));
    call.read(image.tensor);
    if (guess)
        call.write(image.range + HalfRanges::kFound, HalfRanges::kBytes - HalfRanges::kFound);
    else
        call.write(image.range, HalfRanges::kFound);
    call.dispatch(args, kernels::Grid::linear(workgroups));
}

}  // namespace

void find_range(const Image& image, int64_t groups) {
    look(image, groups, false);
}

void guess_range(const Image& image, int64_t groups) {
    look(image, groups, true);
}

}  // namespace anymps::ops
