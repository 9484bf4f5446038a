#include "distributed/exported_segments.h"

#include <algorithm>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "distributed/file_socket.h"
#include "runtime/command_encoder.h"
#include "runtime/device.h"
#include "vulkan/check.h"

namespace anymps::distributed {
namespace {

using vulkan::MemoryHandle;
using Buffers = std::vector<SegmentBuffers::BufferPtr>;

constexpr auto kPatience = std::chrono::milliseconds(5);  // with a message that has not come

uint32_t bit(MemoryHandle handle) {
    return 1u << static_cast<uint32_t>(handle);
}

SharedSegment::Device offered() {
    const vulkan::Device& device = runtime::device();
    SharedSegment::Device own{device.info().external_uuid, 0};
    for (const MemoryHandle handle : {MemoryHandle::OpaqueFd, MemoryHandle::DmaBuf}) {
        if (vulkan::can_share(device, handle)) own.handles |= bit(handle);
    }
    return own;
}

// The same in all ranks.
std::optional<MemoryHandle> choose_handle(const std::vector<SharedSegment>& segments) {
    uint32_t handles = ~0u;
    bool one_device = true;
    for (const auto& segment : segments) {
        handles &= segment.device().handles;
        one_device &= segment.device().uuid == segments.front().device().uuid;
    }
    if (one_device && (handles & bit(MemoryHandle::OpaqueFd))) return MemoryHandle::OpaqueFd;
    if (handles & bit(MemoryHandle::DmaBuf)) return MemoryHandle::DmaBuf;
    return std::nullopt;
}

// Sends this rank's memory to all others and imports theirs, as they come. False where a rank has left.
bool pass_memory(const FileSocket& socket, MemoryHandle handle, Agreement& agreement, Buffers& buffers) {
    const vulkan::Device& device = runtime::device();
    const auto& segments = agreement.segments();
    const int ranks = static_cast<int>(segments.size()), own = agreement.rank();
    auto exported = std::make_unique<const vulkan::Buffer>(device, SharedSegment::kBytes, handle);
    const vulkan::SharedMemoryFile shared = exported->export_memory(handle);
    const File file(shared.file);
    buffers[own] = std::move(exported);
    std::vector<int> unsent;
    for (int rank = 0; rank < ranks; ++rank) {
        if (rank != own) unsent.push_back(rank);
    }
    int missing = ranks - 1;
    while (missing > 0 || !unsent.empty()) {
        std::erase_if(unsent, [&](int rank) {
            return socket.send(segments[rank].record(), {own, shared.memory_type}, file.number());
        });
        const auto received = socket.receive();
        if (!received) {
            if (!agreement.holds()) return false;
            socket.wait(kPatience);
            continue;
        }
        const auto [rank, memory_type] = received->message;
        if (rank < 0 || rank >= ranks || buffers[rank]) throw std::runtime_error("memory of an unknown rank");
        buffers[rank] = std::make_unique<const vulkan::Buffer>(
            device, SharedSegment::kBytes, handle,
            vulkan::SharedMemoryFile{received->file.number(), memory_type});
        --missing;
    }
    return true;
}

// Host memory that the device copies from and to.
class Scratch {
  public:
    explicit Scratch(size_t words)
        : buffer_(std::make_shared<const vulkan::Buffer>(runtime::device(), words * sizeof(uint32_t),
                                                         vulkan::MemoryKind::Staging)),
          words_(words) {
        runtime::map_buffer(buffer_);
    }
    ~Scratch() { runtime::unmap_buffer(*buffer_); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    uint64_t address() const { return buffer_->address(); }
    std::span<uint32_t> words() const { return {reinterpret_cast<uint32_t*>(buffer_->host()), words_}; }

  private:
    std::shared_ptr<const vulkan::Buffer> buffer_;
    size_t words_;
};

}  // namespace

std::unique_ptr<const SegmentBuffers> exchange_segments(Agreement& agreement) {
    const auto& segments = agreement.segments();
    const SharedSegment& own = segments[agreement.rank()];
    std::optional<FileSocket> socket;
    Buffers buffers(segments.size());
    own.device() = offered();
    try {
        socket.emplace(own.record());
    } catch (const std::exception&) {
        return nullptr;
    }
    if (!agreement.reach()) return nullptr;
    const auto handle = choose_handle(segments);
    if (!handle) return nullptr;
    std::unique_ptr<const SegmentBuffers> all;
    try {
        if (!pass_memory(*socket, *handle, agreement, buffers)) return nullptr;
        all = std::make_unique<const SegmentBuffers>(runtime::device(), std::move(buffers));
    } catch (const std::exception&) {
        return nullptr;
    }
    return agreement.reach() ? std::move(all) : nullptr;
}

bool verify_segments(StepExecutor& steps, Agreement& agreement) {
    constexpr size_t kWords = 16 << 10;
    constexpr int kRounds = 2;
    const int ranks = static_cast<int>(agreement.segments().size()), own = agreement.rank();
    const size_t places[] = {SharedSegment::slot(0),
                             SharedSegment::small_slot(SharedSegment::kSmallSlots - 1)};
    const auto number = [&](int round, int rank, size_t place, size_t i) {
        return static_cast<uint32_t>(2654435761u * (i + kWords * (place + 2 * (rank + ranks * round)) + 1));
    };
    const auto copy = [&](StepExecutor& by, uint64_t to, uint64_t from) {
        by.copy(to, from, kWords * sizeof(uint32_t));
        by.wait(by.submit(0));
    };
    const Scratch scratch(kWords);
    for (int round = 0; round < kRounds; ++round) {
        try {
            for (size_t place = 0; place < std::size(places); ++place) {
                for (size_t i = 0; i < kWords; ++i) scratch.words()[i] = number(round, own, place, i);
                copy(steps, steps.segment(own) + places[place], scratch.address());
            }
        } catch (const vulkan::Error&) {
            return false;
        }
        if (!agreement.reach()) return false;
        bool right = true;
        try {
            for (int rank = 0; rank < ranks; ++rank) {
                for (size_t place = 0; place < std::size(places); ++place) {
                    for (StepExecutor* by : {&steps, steps.in_stream()}) {
                        if (by == nullptr) continue;
                        std::ranges::fill(scratch.words(), 0u);
                        copy(*by, scratch.address(), steps.segment(rank) + places[place]);
                        for (size_t i = 0; i < kWords; ++i)
                            right &= scratch.words()[i] == number(round, rank, place, i);
                    }
                }
            }
        } catch (const vulkan::Error&) {
            return false;
        }
        if (!right || !agreement.reach()) return false;
    }
    return true;
}

}  // namespace anymps::distributed
