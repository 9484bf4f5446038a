#include "runtime/command_graph.h"

#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "runtime/address_map.h"
#include "runtime/allocator.h"
#include "runtime/command.h"
#include "runtime/command_encoder.h"
#include "runtime/device.h"
#include "runtime/kept_commands.h"
#include "vulkan/buffer.h"
#include "vulkan/check.h"
#include "vulkan/command_buffer.h"

namespace anymps::runtime {
namespace {

constexpr uint64_t kArgumentBytes = 256ull << 10;  // of one buffer, unless more is needed at once
constexpr uint64_t kAlignment = 16;

constexpr std::string_view kCaptureName = "anymps graph capture";
constexpr c10::DebugInfoKind kCapture(&kCaptureName);

thread_local int t_outside = 0;

}  // namespace

std::atomic<int> captures{0};

// What c10's thread-local state carries to threads that work for the capture. It may outlive the capture.
struct CommandGraph::Capture final : c10::DebugInfoBase {
    std::atomic<CommandGraph*> graph;
};

CommandGraph* find_capture() {
    if (t_outside != 0) return nullptr;
    auto* capture = static_cast<CommandGraph::Capture*>(c10::ThreadLocalDebugInfo::get(kCapture));
    return capture ? capture->graph.load(std::memory_order_acquire) : nullptr;
}

void check_not_capturing(const char* what) {
    TORCH_CHECK(capturing() == nullptr, what,
                " is not permitted while a graph is captured: its commands run only when it is replayed");
}

OutsideCapture::OutsideCapture() {
    ++t_outside;
}

OutsideCapture::~OutsideCapture() {
    --t_outside;
}

CommandGraph::~CommandGraph() {
    release();
}

void CommandGraph::capture_begin(c10::MempoolId_t pool) {
    TORCH_CHECK(capturing() == nullptr, "This thread captures a graph already");
    TORCH_CHECK(state_ == State::kEmpty,
                "This graph has been captured already: reset() it, or capture another one");
    const vulkan::Device& device = runtime::device();
    const vulkan::CommandBuffer commands = vulkan::create_command_buffer(device);
    command_pool_ = commands.pool;
    recording_.handle = commands.handle;
    // Several replays may be pending.
    vulkan::begin_command_buffer(device, commands.handle, VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT);
    encoder().graph_barrier(recording_);
    recording_.kept = std::make_shared<KeptCommands>(device);
    pool_ = allocator().retain_pool(pool);
    state_ = State::kCapturing;
    capture_ = std::make_shared<Capture>();
    capture_->graph.store(this, std::memory_order_release);
    c10::ThreadLocalDebugInfo::_push(kCapture, capture_);
    captures.fetch_add(1);
}

void CommandGraph::capture_end() {
    TORCH_CHECK(state_ == State::kCapturing && capturing() == this,
                "This thread does not capture this graph");
    stop_capture();
    encoder().graph_barrier(recording_);
    state_ = State::kCaptured;
    VK_CHECK(runtime::device().api().vkEndCommandBuffer(recording_.handle));
}

void CommandGraph::stop_capture() {
    captures.fetch_sub(1);
    capture_->graph.store(nullptr, std::memory_order_release);
    capture_.reset();
    try {
        c10::ThreadLocalDebugInfo::_pop(kCapture);
    } catch (const c10::Error&) {
        // Another thread, or something was pushed above: what stays there names no graph any more.
    }
}

void CommandGraph::replay() {
    TORCH_CHECK(state_ == State::kCaptured, "This graph has not been captured");
    check_not_capturing("A replay of another graph");
    RECORD_FUNCTION("torch.accelerator.Graph.replay", c10::ArrayRef<const c10::IValue>{});
    std::vector<PhiloxBase> bases;
    for (Draws& draws : draws_) {
        bases.push_back({draws.base.address(), draws.sequence->reserve(draws.blocks)});
    }
    submission_ = encoder().replay(recording_, bases);
}

void CommandGraph::reset() {
    release();
}

void CommandGraph::release() noexcept {
    if (state_ == State::kCapturing) stop_capture();
    if (command_pool_ == VK_NULL_HANDLE) return;
    if (!in_bad_fork()) {
        try {
            encoder().wait(submission_);
        } catch (const std::exception&) {
            // The device is lost: nothing is pending.
        }
        runtime::device().api().vkDestroyCommandPool(runtime::device().handle(), command_pool_, nullptr);
        zeroed_.clear();
        if (pool_ != c10::MempoolId_t{0, 0}) allocator().release_pool(pool_);
    }
    state_ = State::kEmpty;
    command_pool_ = VK_NULL_HANDLE;
    recording_ = {};
    submission_ = 0;
    pool_ = {0, 0};
    for (const auto& buffer : arguments_) unmap_buffer(*buffer);
    arguments_.clear();
    arguments_used_ = 0;
    retained_.clear();
    names_.clear();
    draws_.clear();
    zeroed_used_ = 0;
}

ArgumentRing::Slice CommandGraph::reserve(uint64_t bytes) {
    bytes = (bytes + kAlignment - 1) & ~(kAlignment - 1);
    if (arguments_.empty() || arguments_used_ + bytes > arguments_.back()->bytes()) {
        arguments_.push_back(std::make_shared<vulkan::Buffer>(
            runtime::device(), std::max(bytes, kArgumentBytes), vulkan::MemoryKind::Ring));
        map_buffer(arguments_.back());
        arguments_used_ = 0;
    }
    const vulkan::Buffer& buffer = *arguments_.back();
    const uint64_t offset = std::exchange(arguments_used_, arguments_used_ + bytes);
    return {buffer.address() + offset, buffer.host() + offset, offset, &buffer};
}

void CommandGraph::record(const Command& command, std::span<const Access> accesses) {
    ++recording_.commands;
    recording_.kept->add(command, accesses, recording_.barrier);
    if (keeps_names_) names_.emplace_back(command.name());
}

void CommandGraph::begin_submission() {
    const vulkan::Device& device = runtime::device();
    encoder().graph_barrier(recording_);
    VK_CHECK(device.api().vkEndCommandBuffer(recording_.handle));
    recording_.ended.push_back(recording_.handle);
    recording_.handle = vulkan::add_command_buffer(device, command_pool_);
    vulkan::begin_command_buffer(device, recording_.handle, VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT);
    recording_.bound = VK_NULL_HANDLE;
    recording_.barrier |= kDeviceStages;  // the one above, for those who record the commands again
    recording_.seconds = 0;
}

void CommandGraph::retain(std::shared_ptr<const vulkan::Buffer> buffer) {
    retained_.insert(std::move(buffer));
}

PhiloxState CommandGraph::reserve_philox(const std::shared_ptr<PhiloxSequence>& sequence, uint64_t blocks) {
    const std::lock_guard lock(mutex_);
    auto draws =
        std::find_if(draws_.begin(), draws_.end(), [&](const Draws& d) { return d.sequence == sequence; });
    if (draws == draws_.end()) {
        const OutsideCapture outside;
        draws = draws_.insert(draws_.end(), {sequence, ZeroedWords(1)});
    }
    return {draws->base.address(), kPhiloxInMemory | std::exchange(draws->blocks, draws->blocks + blocks)};
}

uint64_t CommandGraph::zeroed_words(uint64_t slots) {
    constexpr uint64_t kBytes = ZeroedWords::kMaxSlots * ZeroedWords::kSlotBytes;
    const std::lock_guard lock(mutex_);
    if (zeroed_.empty() || zeroed_used_ + slots > ZeroedWords::kMaxSlots) {
        zeroed_.push_back(allocator().allocate(kBytes));
        encoder().fill(reinterpret_cast<uint64_t>(zeroed_.back().get()), 0, kBytes);
        zeroed_used_ = 0;
    }
    const uint64_t first = std::exchange(zeroed_used_, zeroed_used_ + slots);
    return reinterpret_cast<uint64_t>(zeroed_.back().get()) + first * ZeroedWords::kSlotBytes;
}

}  // namespace anymps::runtime
