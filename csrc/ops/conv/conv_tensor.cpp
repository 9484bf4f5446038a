#include "ops/conv/conv_tensor.h"

#include <anymps/shaders/conv_amax.h>
#include <anymps/shaders/conv_pack.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <optional>
#include <string>

#include "kernels/geometry.h"
#include "kernels/launch_config.h"
#include "runtime/device.h"
#include "runtime/kernel_profile.h"

namespace anymps::ops {
namespace {

using at::Tensor;
using kernels::ceil_div;
using kernels::FastDivider;

constexpr int64_t kGranule = 8;
constexpr uint32_t kTile = shaders::conv_pack::kTile, kThreads = 256;
constexpr uint64_t kMaxAmaxGroups = 2112;               // each begins and ends with a wait
constexpr int64_t kBlock = shaders::conv_amax::kBlock;  // elements of which conv_amax takes the largest

using shaders::conv_amax::AmaxArgs;
using shaders::conv_pack::PackArgs;

constexpr kernels::KernelFamily kPack(shaders::conv_pack::kernels_with<PackArgs>, {"conv_pack_"},
                                      {"1", "2", "4", "8"});

void set_axes(ConvTensor& image) {
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
bool begins_words(const ConvTensor& image, int64_t groups, int64_t count) {
    const auto bytes = static_cast<uint64_t>(std::min<int64_t>(16, count * image.tensor.element_size()));
    return kernels::address(image.tensor) % bytes == 0 && steps_by(count, image.outer, image.outer_stride) &&
           steps_by(count, groups, image.group_stride);
}

// True where channels, of stride 1, are whole words.
bool has_words_of_channels(const ConvTensor& image, int64_t groups, int64_t count) {
    bool result = image.channels % count == 0 && begins_words(image, groups, count);
    for (int axis = 0; axis < 3; ++axis)
        result = result && steps_by(count, image.sizes[axis], image.strides[axis]);
    return result;
}

bool is_packed(const ConvTensor& image, int64_t groups) {
    return image.is_channels_last() && has_words_of_channels(image, groups, kGranule);
}

uint32_t channels_of_tile(const ConvTensor& image) {
    const auto channels = std::bit_ceil(static_cast<uint64_t>(image.channels));
    // Few positions (of weights) leave more room for channels.
    const auto positions = std::bit_ceil(static_cast<uint64_t>(image.positions()));
    const uint64_t most = std::max<uint64_t>(64, kTile / std::max<uint64_t>(positions, 16));
    return static_cast<uint32_t>(std::clamp<uint64_t>(channels, kGranule, most));
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
           positions <= kMaxPositions && image.channels % kGranule == 0 &&
           begins_words(image, groups, kGranule);
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
    int64_t count = kGranule;
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

ConvTensor activation_of(const Tensor& tensor, int64_t groups) {
    const int64_t channels = tensor.size(1) / groups;
    ConvTensor image{tensor,          tensor.size(0), channels, tensor.stride(0), channels * tensor.stride(1),
                     tensor.stride(1)};
    set_axes(image);
    return image;
}

ConvTensor filter_of(const Tensor& tensor, int64_t groups) {
    const int64_t outer = tensor.size(0) / groups;
    ConvTensor image{tensor,          outer, tensor.size(1), tensor.stride(0), outer * tensor.stride(0),
                     tensor.stride(1)};
    set_axes(image);
    return image;
}

ConvTensor transposed(ConvTensor weight) {
    std::swap(weight.outer, weight.channels);
    std::swap(weight.outer_stride, weight.channel_stride);
    weight.padded = weight.channels;
    return weight;
}

ConvTensor ConvTensor::as(Form way) const {
    ConvTensor result = *this;
    if (form == way) return result;
    if (form == Form::Plain) {
        result.form = way == Form::ScaledF16 ? Form::ScaledOnLoad : Form::Plain;
        return result;
    }
    TORCH_INTERNAL_ASSERT(form == Form::Bf16x2OrScaledF16);
    result.form = way;
    if (way == Form::ScaledF16) result.tensor = tensor.view(at::kHalf);
    return result;
}

namespace {

ConvTensor as_blocked(ConvTensor image) {
    image.strides = {image.sizes[1] * image.sizes[2] * 16, image.sizes[2] * 16, 16};
    image.block_stride = image.positions() * 16;
    return image;
}

ConvTensor pack(const ConvTensor& image, int64_t groups, Form form, const AmaxStates* amaxes, bool blocks) {
    TORCH_INTERNAL_ASSERT(image.form == Form::Plain);
    const ConvTensor source = blocks ? image : joined(image);
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
    const auto type = form == Form::ScaledF16 ? at::kHalf : image.tensor.scalar_type();
    const Tensor memory =
        at::empty({image.outer, positions, groups, padded}, image.tensor.options().dtype(type));
    ConvTensor result = image;
    result.tensor = memory;
    result.padded = padded;
    result.form = form;
    result.channel_stride = 1;
    result.group_stride = padded;
    result.strides[2] = groups * padded;
    result.strides[1] = image.sizes[2] * result.strides[2];
    result.strides[0] = image.sizes[1] * result.strides[1];
    result.outer_stride = positions * groups * padded;
    if (blocks && form == Form::Plain) result = as_blocked(result);
    TORCH_CHECK(result.outer_stride <= std::numeric_limits<int32_t>::max(), "convolution: an image of ",
                result.outer_stride, " elements is too large for the mps device");
    args.to = kernels::address(memory);
    const bool halves = form == Form::ScaledF16 || form == Form::Bf16x2OrScaledF16;
    if (halves) {
        args.amaxes = amaxes->address();
        args.amax_count = static_cast<uint32_t>(amaxes->count);
        args.amax_state = image.amax_state;
    }
    if (memory.numel() == 0) return result;
    const bool cut = form == Form::Bf16x2 || form == Form::Bf16x2OrScaledF16;
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
    if (halves) amaxes->read_by(call);
    call.read(image.tensor).write(memory).dispatch(args, kernels::Grid::linear(args.tiles));
    return result;
}

}  // namespace

ConvTensor packed(const ConvTensor& image, int64_t groups, Form form, const AmaxStates* amaxes) {
    const bool ready = form == Form::Plain ? is_packed(image, groups) : image.form == form;
    return ready ? image : pack(image, groups, form, amaxes, false);
}

ConvTensor to_blocked(const ConvTensor& image, const AmaxStates* amaxes) {
    return pack(image, 1, amaxes != nullptr ? Form::Bf16x2OrScaledF16 : Form::Plain, amaxes, true);
}

ConvTensor scaled_blocked(ConvTensor image) {
    return as_blocked(image.as(Form::ScaledF16));
}

namespace {

// The image in the form in which conv_amax has whole blocks and words.
ConvTensor amax_view(const ConvTensor& image, int64_t groups) {
    ConvTensor fused_amax = image;
    // Of few positions blocks would be small: those of the outer dimension join them.
    const bool rows = image.channel_stride == image.positions() && is_flat(image) && groups == 1;
    if (image.positions() > 1 && image.positions() < kBlock && rows) {
        // All channels' positions are one row of the outer dimension.
        fused_amax.sizes = {1, 1, image.channels * image.positions()};
        fused_amax.strides = {0, 0, 1};
        fused_amax.channels = image.outer;
        fused_amax.channel_stride = image.outer_stride;
        fused_amax.outer = 1;
    } else if (image.positions() < kBlock && image.sizes[0] == 1) {
        fused_amax.sizes[0] = image.outer;
        fused_amax.strides[0] = image.outer_stride;
        fused_amax.outer = 1;
    }
    // Channels that only together are words are read as one: of neighbours 16 have still blocks of one
    // position, and every channel has blocks of its own.
    constexpr int64_t kWord = 4;
    const int64_t joined = kWord / std::gcd(fused_amax.positions(), kWord);
    if (image.positions() >= 2 * kBlock && rows && fused_amax.channels % joined == 0) {
        fused_amax.sizes = {1, 1, fused_amax.positions() * joined};
        fused_amax.channels /= joined;
        fused_amax.channel_stride *= joined;
        fused_amax.strides = {0, 0, 1};
    }
    return fused_amax;
}

void launch_amax(const ConvTensor& image, int64_t groups, bool sample) {
    if (image.tensor.numel() == 0) return;
    const ConvTensor fused_amax = amax_view(image, groups);
    const bool by_channel = fused_amax.channel_stride == 1;
    const int64_t step = position_stride(fused_amax);
    const int64_t vector = vector_of(fused_amax, groups, step == 1) >= 4 ? 4 : 1;
    const int64_t fast = by_channel ? fused_amax.channels : fused_amax.positions(),
                  slow = by_channel ? fused_amax.positions() : fused_amax.channels;
    AmaxArgs args{};
    args.from = kernels::address(fused_amax.tensor);
    args.amax_state = image.amax_state;
    args.from_outer = fused_amax.outer_stride;
    args.from_group = fused_amax.group_stride;
    args.from_channel = fused_amax.channel_stride;
    std::copy(fused_amax.strides.begin(), fused_amax.strides.end(), args.from_spatial.begin());
    if (step != 0) args.from_spatial[2] = step;
    args.height = FastDivider(static_cast<uint32_t>(fused_amax.sizes[1]));
    args.width = FastDivider(static_cast<uint32_t>(fused_amax.sizes[2]));
    args.across = FastDivider(static_cast<uint32_t>(ceil_div(fast, kBlock) * kBlock / vector));
    args.down = FastDivider(static_cast<uint32_t>(ceil_div(slow, kBlock)));
    args.groups = FastDivider(static_cast<uint32_t>(groups));
    args.positions = static_cast<uint32_t>(fused_amax.positions());
    args.channels = static_cast<uint32_t>(fused_amax.channels);
    args.threads = kernels::group_count(static_cast<uint64_t>(args.across.divisor) * args.down.divisor *
                                        groups * fused_amax.outer);
    const uint64_t all = ceil_div(args.threads, kThreads);
    const uint64_t most =
        sample ? runtime::device().info().profile->costs->amax_sample_groups : kMaxAmaxGroups;
    const auto workgroups = static_cast<uint32_t>(std::min(all, most));
    args.step = sample ? args.threads : workgroups * kThreads;
    args.spread = sample ? static_cast<uint32_t>(all / workgroups) : 1;
    auto call =
        (vector == 4 ? shaders::conv_amax::conv_amax_4 : shaders::conv_amax::conv_amax_1)
            .call({.workgroup = kThreads, .channels_fast = by_channel, .flat = step != 0, .sample = sample});
    if (runtime::profiling())
        runtime::profile_work(0, c10::str(image.tensor.sizes(), sample ? " sample" : ""));
    call.read(image.tensor);
    if (sample)
        call.write(image.amax_state + AmaxStates::kSampleOffset,
                   AmaxStates::kBytes - AmaxStates::kSampleOffset);
    else
        call.write(image.amax_state, AmaxStates::kSampleOffset);
    call.dispatch(args, kernels::Grid::linear(workgroups));
}

}  // namespace

void compute_amax(const ConvTensor& image, int64_t groups) {
    launch_amax(image, groups, false);
}

void sample_amax(const ConvTensor& image, int64_t groups) {
    launch_amax(image, groups, true);
}

}  // namespace anymps::ops
