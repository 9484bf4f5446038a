#include "runtime/allocator.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "runtime/address_map.h"
#include "runtime/command_encoder.h"
#include "runtime/command_graph.h"
#include "runtime/device.h"
#include "runtime/wait_counts.h"
#include "vulkan/buffer.h"
#include "vulkan/check.h"

namespace anymps::runtime {

using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;

namespace {

constexpr size_t kMinBlock = 512;
constexpr size_t kSmallBlock = 1ull << 20;  // blocks up to this come from small segments
constexpr size_t kSmallSegment = 2ull << 20;
constexpr size_t kMediumBlock = 10ull << 20;  // blocks up to this come from medium segments
constexpr size_t kMediumSegment = 20ull << 20;
constexpr size_t kRoundLarge = 2ull << 20;  // larger segments are multiples of this
constexpr double kDefaultWatermark = 1.7;   // as on a Mac

size_t round_up(size_t bytes, size_t multiple) {
    return (bytes + multiple - 1) / multiple * multiple;
}

// Bytes that the driver lets one vulkan::Buffer hold.
uint64_t largest_buffer() {
    return device_info().max_buffer_bytes - vulkan::kGuardTailBytes;
}

size_t segment_bytes(size_t block) {
    if (block <= kSmallBlock) return kSmallSegment;
    if (block <= kMediumBlock) return kMediumSegment;
    const size_t bytes = round_up(block, kRoundLarge);
    return bytes <= largest_buffer() ? bytes : block;
}

// A Mac's words for a tensor that is too large by itself, however much memory is free.
[[noreturn]] void raise_invalid_size(size_t requested, const char* property, uint64_t limit) {
    TORCH_CHECK(false, "Invalid buffer size: ", c10::CachingAllocator::format_size(requested), " (",
                requested, " bytes). A tensor's memory is one buffer, and the driver of ", device_info().name,
                " allows at most ", limit, " bytes (", property, "). Use several smaller tensors.");
}

double watermark_from_environment() {
    const char* text = std::getenv("PYTORCH_MPS_HIGH_WATERMARK_RATIO");
    if (!text) return kDefaultWatermark;
    char* end = nullptr;
    const double ratio = std::strtod(text, &end);
    TORCH_CHECK(end != text && ratio >= 0.0 && ratio <= 2.0, "invalid high watermark ratio ", text);
    return ratio;
}

std::string human(double bytes) {
    char text[32];
    std::snprintf(text, sizeof(text), bytes >= 1e9 ? "%.2f GiB" : "%.2f MiB",
                  bytes / (bytes >= 1e9 ? 1ull << 30 : 1ull << 20));
    return text;
}

void change(StatArray& stat, StatType pool, size_t amount, bool increase) {
    for (const StatType type : {StatType::AGGREGATE, pool}) {
        auto& s = stat[static_cast<size_t>(type)];
        increase ? s.increase(amount) : s.decrease(amount);
    }
}

}  // namespace

struct Allocator::Segment {
    Segment(size_t bytes, PrivatePool* owner)
        : buffer(std::make_shared<vulkan::Buffer>(device(), bytes, vulkan::MemoryKind::Device)),
          owner(owner) {
        map_buffer(buffer);
    }
    ~Segment() { unmap_buffer(*buffer); }
    bool small() const { return buffer->bytes() == kSmallSegment; }
    StatType pool() const { return small() ? StatType::SMALL_POOL : StatType::LARGE_POOL; }
    std::shared_ptr<vulkan::Buffer> buffer;
    PrivatePool* owner;      // or nullptr
    Block* first = nullptr;  // for as long as the segment lives
};

// A part of a segment; neighbours are linked so that free ones merge.
struct Allocator::Block {
    Segment* segment;
    uint64_t address;
    size_t bytes;
    size_t requested = 0;
    bool used = false;
    Block* previous = nullptr;
    Block* next = nullptr;
    StackContext context = nullptr;  // where it was asked for
};

// By which the free memory between tensors changes, which cannot go back to the driver by itself.
struct Allocator::SplitChange {
    int64_t blocks = 0, bytes = 0;
    void add(const Block& block) { add(block, 1); }
    void remove(const Block& block) { add(block, -1); }

  private:
    void add(const Block& block, int64_t sign) {
        if (!block.previous && !block.next) return;
        blocks += sign;
        bytes += sign * static_cast<int64_t>(block.bytes);
    }
};

bool Allocator::BySize::operator()(const Block* a, const Block* b) const {
    return a->bytes != b->bytes ? a->bytes < b->bytes : a->address < b->address;
}

Allocator::Allocator() = default;

Allocator::Pool& Allocator::pool_of(const Segment& segment) {
    Pools& pools = segment.owner ? *segment.owner : shared_;
    return segment.small() ? pools.small : pools.large;
}

c10::DataPtr Allocator::allocate(size_t bytes) {
    const c10::Device where(c10::DeviceType::MPS, 0);
    check_not_forked();
    if (bytes == 0) return {nullptr, nullptr, &delete_block, where};
    if (bytes > std::numeric_limits<size_t>::max() / 2)  // which would not survive being rounded up
        raise_invalid_size(bytes, "maxBufferSize", device_info().max_buffer_bytes);
    let_go();
    StackContext context = history_.context();
    const bool reports = profiler_is_told();
    Block* block;
    Totals now{};
    {
        std::lock_guard lock(mutex_);
        PrivatePool* owner = nullptr;
        if (const CommandGraph* graph = capturing()) owner = &private_.at(graph->pool());
        block = take(round_up(bytes, kMinBlock), bytes, owner);
        history_.add("alloc", block->address, block->bytes, context);
        block->context = std::move(context);
        if (reports) now = totals();
    }
    if (reports) [[unlikely]] {
        c10::reportMemoryUsageToProfiler(reinterpret_cast<void*>(block->address),
                                         static_cast<int64_t>(block->bytes), now.allocated, now.reserved,
                                         where);
    }
    return {reinterpret_cast<void*>(block->address), block, &delete_block, where};
}

c10::DeleterFnPtr Allocator::raw_deleter() const {
    return nullptr;
}  // the context is a block, not the pointer

void Allocator::copy_data(void* dst, const void* src, size_t bytes) const {
    encoder().copy(reinterpret_cast<uint64_t>(dst), reinterpret_cast<uint64_t>(src), bytes);
}

void Allocator::delete_block(void* context) {
    if (!context) return;
    auto* block = static_cast<Block*>(context);
    release_and_report(block, nullptr);
}

void Allocator::delete_address(void* address) {
    release_and_report(nullptr, address);
}

// One of both is given: a block, or the address of a simplified one.
void Allocator::release_and_report(Block* block, void* address) {
    Allocator& self = allocator();
    const bool reports = profiler_is_told();
    size_t bytes;
    Totals now{};
    {
        std::lock_guard lock(self.mutex_);
        if (!block) block = self.simplified_.extract(address).mapped();
        address = reinterpret_cast<void*>(block->address);
        bytes = block->bytes;
        self.history_.add("free_requested", block->address, bytes);
        self.history_.add("free_completed", block->address, bytes);
        self.release(block);
        if (reports) now = self.totals();
    }
    if (reports) [[unlikely]] {
        c10::reportMemoryUsageToProfiler(address, -static_cast<int64_t>(bytes), now.allocated, now.reserved,
                                         c10::Device(c10::DeviceType::MPS, 0));
    }
}

bool Allocator::simplify(c10::DataPtr& pointer) {
    if (pointer.get() == nullptr || pointer.get_deleter() == &delete_address) return true;
    if (pointer.get_deleter() != &delete_block) return false;
    void* const address = pointer.mutable_get();
    std::lock_guard lock(mutex_);
    simplified_.emplace(address, static_cast<Block*>(pointer.get_context()));
    pointer.release_context();
    pointer = c10::DataPtr(address, address, &delete_address, pointer.device());
    return true;
}

Allocator::Block* Allocator::take(size_t rounded, size_t requested, PrivatePool* owner) {
    Pools& pools = owner ? *owner : shared_;
    Pool& pool = rounded <= kSmallBlock ? pools.small : pools.large;
    Block key{nullptr, 0, rounded};
    auto found = pool.lower_bound(&key);
    Block* block;
    SplitChange inactive;
    if (found != pool.end()) {
        block = *found;
        pool.erase(found);
        inactive.remove(*block);
    } else {
        block = new_segment(rounded, requested, owner);
        if (!block) {
            ++stats_.num_alloc_retries;
            free_cached_segments();
            block = new_segment(rounded, requested, owner);
        }
        if (!block) raise_out_of_memory(requested);
    }
    if (Block* rest = split(block, rounded)) inactive.add(*rest);
    count_inactive_split(*block->segment, inactive);
    block->used = true;
    block->requested = requested;
    count(block, true);
    return block;
}

// nullptr when the watermark or the driver refuses.
Allocator::Block* Allocator::new_segment(size_t rounded, size_t requested, PrivatePool* owner) {
    const size_t bytes = segment_bytes(rounded);
    if (const size_t limit = limit_bytes(); limit && reserved_bytes() + bytes > limit) return nullptr;
    if (bytes > largest_buffer())
        raise_invalid_size(requested, "maxBufferSize", device_info().max_buffer_bytes);
    std::unique_ptr<Segment> segment;
    const WaitScope waits(WaitReason::kMemory);
    try {
        segment = std::make_unique<Segment>(bytes, owner);
    } catch (const vulkan::Error& error) {
        if (error.out_of_memory()) return nullptr;
        throw;
    }
    ++stats_.num_device_alloc;
    change(stats_.segment, segment->pool(), 1, true);
    change(stats_.reserved_bytes, segment->pool(), bytes, true);
    auto* block = new Block{segment.get(), segment->buffer->address(), bytes};
    segment->first = block;
    history_.add("segment_alloc", block->address, bytes);
    segments_.push_back(std::move(segment));
    return block;
}

// What is left of the block, or nullptr where it is too little to be one.
Allocator::Block* Allocator::split(Block* block, size_t bytes) {
    const size_t rest = block->bytes - bytes;
    const size_t smallest = block->segment->small() ? kMinBlock : kSmallBlock;
    if (rest < smallest) return nullptr;
    auto* tail = new Block{block->segment, block->address + bytes, rest};
    tail->previous = block;
    tail->next = block->next;
    if (tail->next) tail->next->previous = tail;
    block->next = tail;
    block->bytes = bytes;
    pool_of(*block->segment).insert(tail);
    return tail;
}

void Allocator::release(Block* block) {
    count(block, false);
    block->used = false;
    block->context.reset();
    Pool& pool = pool_of(*block->segment);
    SplitChange inactive;
    const auto absorb = [&](Block* left, Block* right) {
        left->bytes += right->bytes;
        left->next = right->next;
        if (left->next) left->next->previous = left;
        delete right;
    };
    if (Block* next = block->next; next && !next->used) {
        pool.erase(next);
        inactive.remove(*next);
        absorb(block, next);
    }
    if (Block* previous = block->previous; previous && !previous->used) {
        pool.erase(previous);
        inactive.remove(*previous);
        absorb(previous, block);
        block = previous;
    }
    pool.insert(block);
    inactive.add(*block);
    count_inactive_split(*block->segment, inactive);
}

void Allocator::free_cached_segments() {
    const OutsideCapture outside;  // private pools keep theirs, which graphs use
    bool waited = false;
    for (Pool* pool : {&shared_.small, &shared_.large}) {
        for (auto it = pool->begin(); it != pool->end();) {
            Block* block = *it;
            if (block->previous || block->next) {
                ++it;
                continue;
            }
            if (!waited) {
                encoder().wait(encoder().submit());  // commands in flight may still use the memory
                waited = true;
                ++stats_.num_sync_all_streams;
            }
            it = pool->erase(it);
            Segment* segment = block->segment;
            history_.add("segment_free", block->address, block->bytes);
            delete block;
            ++stats_.num_device_free;
            change(stats_.segment, segment->pool(), 1, false);
            change(stats_.reserved_bytes, segment->pool(), segment->buffer->bytes(), false);
            std::erase_if(segments_, [&](const auto& s) { return s.get() == segment; });
        }
    }
}

c10::MempoolId_t Allocator::retain_pool(c10::MempoolId_t id) {
    std::lock_guard lock(mutex_);
    if (id == c10::MempoolId_t{0, 0}) {
        while (private_.contains({next_pool_, 0})) ++next_pool_;
        id = {next_pool_++, 0};
    }
    ++private_[id].users;
    return id;
}

void Allocator::release_pool(c10::MempoolId_t id) {
    std::lock_guard lock(mutex_);
    const auto found = private_.find(id);
    if (--found->second.users > 0) return;
    for (const auto& segment : segments_) {
        if (segment->owner == &found->second) segment->owner = nullptr;
    }
    shared_.small.merge(found->second.small);
    shared_.large.merge(found->second.large);
    private_.erase(found);
}

void Allocator::count(Block* block, bool allocate) {
    const StatType pool = block->segment->pool();
    change(stats_.allocation, pool, 1, allocate);
    change(stats_.active, pool, 1, allocate);
    change(stats_.allocated_bytes, pool, block->bytes, allocate);
    change(stats_.active_bytes, pool, block->bytes, allocate);
    change(stats_.requested_bytes, pool, block->requested, allocate);
}

void Allocator::count_inactive_split(const Segment& segment, const SplitChange& by) {
    const auto count = [&](StatArray& stat, int64_t amount) {
        if (amount != 0) change(stat, segment.pool(), static_cast<size_t>(std::abs(amount)), amount > 0);
    };
    count(stats_.inactive_split, by.blocks);
    count(stats_.inactive_split_bytes, by.bytes);
}

Allocator::Totals Allocator::totals() const {
    const auto& allocated = stats_.allocated_bytes[static_cast<size_t>(StatType::AGGREGATE)];
    return {static_cast<size_t>(allocated.current), reserved_bytes()};
}

void Allocator::record_history(int64_t max_entries, bool stacks) {
    std::lock_guard lock(mutex_);
    max_entries < 0 ? history_.stop() : history_.start(static_cast<size_t>(max_entries), stacks);
}

std::pair<std::vector<SegmentState>, std::vector<MemoryEvent>> Allocator::snapshot() {
    let_go();
    std::lock_guard lock(mutex_);
    history_.add("snapshot", 0, 0);
    std::vector<SegmentState> result;
    for (const auto& segment : segments_) {
        c10::MempoolId_t pool{0, 0};
        for (const auto& [id, owner] : private_) {
            if (&owner == segment->owner) pool = id;
        }
        SegmentState state{segment->first->address, segment->buffer->bytes(), segment->small(), pool, {}};
        for (const Block* block = segment->first; block; block = block->next) {
            state.blocks.push_back(
                {block->address, block->bytes, block->requested, block->used, block->context});
        }
        result.push_back(std::move(state));
    }
    return {std::move(result), {history_.events().begin(), history_.events().end()}};
}

void Allocator::raise_out_of_memory(size_t requested) {
    ++stats_.num_ooms;
    history_.add("oom", device().free_memory(), requested);
    const auto [allocated, reserved] = totals();
    c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(requested), allocated, reserved,
                                     c10::Device(c10::DeviceType::MPS, 0));
    // A driver may give more than this in one piece, so that it was asked first.
    const uint64_t most = device_info().max_allocation_bytes;
    if (const size_t limit = limit_bytes(); requested > most && (limit == 0 || requested <= limit))
        raise_invalid_size(requested, "maxMemoryAllocationSize", most);
    std::string text =
        "MPS backend out of memory (MPS allocated: " + human(double(allocated)) +
        ", other allocations: " + human(double(reserved - allocated)) +
        ", max allowed: " + human(double(limit_bytes())) + "). Tried to allocate " +
        human(double(requested)) +
        " on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory "
        "allocations (may cause system failure).";
    throw c10::OutOfMemoryError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, std::move(text));
}

size_t Allocator::limit_bytes() const {
    // Read at the first allocation: a bad value must not fail `import torch`.
    if (!fraction_) fraction_ = watermark_from_environment();
    if (*fraction_ == 0.0) return 0;
    // Beyond the heap, drivers move memory of other programs out or the system ends the process: never by
    // default. A fraction of less than a byte is a limit, too.
    const auto bytes = static_cast<size_t>(*fraction_ * double(recommended_bytes()));
    return std::max<size_t>(std::min<size_t>(bytes, device().device_memory()), 1);
}

bool Allocator::initialized() {
    return device_created();
}

void Allocator::emptyCache(c10::MempoolId_t) {
    if (!device_created()) return;
    let_go();
    std::lock_guard lock(mutex_);
    free_cached_segments();
}

c10::CachingDeviceAllocator::DeviceStats Allocator::getDeviceStats(c10::DeviceIndex) {
    let_go();
    std::lock_guard lock(mutex_);
    return stats_;
}

std::array<StatArray*, 9> Allocator::all_stats() {
    return {
        &stats_.allocation,      &stats_.segment,        &stats_.active,       &stats_.inactive_split,
        &stats_.allocated_bytes, &stats_.reserved_bytes, &stats_.active_bytes, &stats_.inactive_split_bytes,
        &stats_.requested_bytes};
}

void Allocator::resetAccumulatedStats(c10::DeviceIndex) {
    std::lock_guard lock(mutex_);
    for (auto* stat : all_stats()) {
        for (auto& s : *stat) s.reset_accumulated();
    }
    stats_.num_alloc_retries = stats_.num_ooms = stats_.num_device_alloc = stats_.num_device_free =
        stats_.num_sync_all_streams = 0;
}

void Allocator::resetPeakStats(c10::DeviceIndex) {
    let_go();
    std::lock_guard lock(mutex_);
    for (auto* stat : all_stats()) {
        for (auto& s : *stat) s.reset_peak();
    }
}

std::pair<size_t, size_t> Allocator::getMemoryInfo(c10::DeviceIndex) {
    return {device().free_memory(), device().device_memory()};
}

size_t Allocator::max_allocation_bytes() const {
    return std::min(device_info().max_allocation_bytes, largest_buffer()) / kMinBlock * kMinBlock;
}

size_t Allocator::allocated_bytes() const {
    let_go();
    return totals().allocated;
}

size_t Allocator::reserved_bytes() const {
    return static_cast<size_t>(stats_.reserved_bytes[static_cast<size_t>(StatType::AGGREGATE)].current);
}

size_t Allocator::recommended_bytes() const {
    const double share = device().info().in_system_memory() ? 0.5 : 0.95;
    return static_cast<size_t>(share * double(device().device_memory()));
}

void Allocator::set_memory_fraction(double fraction) {
    TORCH_CHECK(fraction >= 0.0 && fraction <= 2.0, "Invalid fraction value: ", fraction,
                ". Allowed range is [0, 2].");
    std::lock_guard lock(mutex_);
    fraction_ = fraction;
}

Allocator& allocator() {
    static auto* const instance = new Allocator;
    return *instance;
}

namespace {
struct RegisterAllocator {
    RegisterAllocator() { c10::SetAllocator(c10::DeviceType::MPS, &allocator()); }
} register_allocator;
}  // namespace

}  // namespace anymps::runtime
