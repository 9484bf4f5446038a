// GPU times of single commands, for whoever asks: timestamps in the command buffers, and what they are of.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/command.h"
#include "runtime/command_origin.h"
#include "runtime/device_clock.h"
#include "runtime/hazards.h"

namespace anymps::vulkan {
class Buffer;
}  // namespace anymps::vulkan

namespace anymps::runtime {

class KeptCommands;

// A command that the device has completed.
struct TimedCommand {
    std::string_view name;
    Command::Kind kind;
    Grid grid;                                   // zeros where it was in memory
    uint64_t bytes_read = 0, bytes_written = 0;  // the memory that its launcher names
    uint32_t graph_position = 0;                 // from 1: in the graph whose replay it was a part of
    CommandOrigin origin;                        // of the replay, where it was a part of one
    uint64_t first = 0, last = 0;                // ticks
};

// A call of the host that submits or waits.
struct HostCall {
    const char* name;
    CommandOrigin origin;
};

// Takes the times of all commands while it is the active one. Used under the encoder's lock then, by its
// owner alone after that. Where no barrier is between two commands the second one begins when the first one
// ends: they share a timestamp, since the device writes one when all before it has completed.
class CommandTimer {
  public:
    enum class Isolation {
        kNone,
        kBarrier,  // commands do not overlap
        kWait,     // and the host waits for each
    };
    using Sink = std::function<void(TimedCommand&&)>;

    // sink: gets each completed command, in no order, under the encoder's lock or in deactivate().
    CommandTimer(Isolation isolation, Sink sink);
    ~CommandTimer();

    Isolation isolation() const { return isolation_; }

    // Takes times from here on. Raises RuntimeError where another one is active, or where the driver has no
    // timestamps. Does not open the device: a process that never uses it has no commands.
    void activate();
    // Waits for the device; the sink has got everything then. Nothing where this is not the active one.
    void deactivate();

    const DeviceClock& clock() const { return clock_; }
    std::vector<HostCall> host_calls() const;  // after deactivate()

    // Around one command of the command buffer, whose submission will have this serial number. apart: the
    // command buffer is new, or a barrier came since the last command.
    void begin(const vulkan::Device& device, VkCommandBuffer commands, uint64_t submission, bool apart);
    void end(VkCommandBuffer commands, const Command& command, std::span<const Access> accesses,
             const CommandOrigin& origin);

    // Notes a replay whose timestamps will be in `ticks` when the submission has completed.
    void replayed(std::shared_ptr<KeptCommands> graph, std::unique_ptr<vulkan::Buffer> ticks,
                  uint64_t submission, const CommandOrigin& origin);

    // Whether there is enough to be worth a collect(): times of what the device has completed.
    bool full() const { return chunks_.size() > 1 || replays_.size() > 8; }
    void collect(uint64_t completed);

  private:
    struct Chunk;
    struct Replay;

    void write(VkCommandBuffer commands);

    const Isolation isolation_;
    const Sink sink_;
    DeviceClock clock_;
    const vulkan::Device* device_ = nullptr;
    std::deque<std::unique_ptr<Chunk>> chunks_;  // oldest first; the last one is being filled
    std::vector<std::unique_ptr<Chunk>> spare_;  // empty again
    std::deque<std::unique_ptr<Replay>> replays_;
};

extern std::atomic<CommandTimer*> active_command_timer;

// nullptr where no times are taken.
inline CommandTimer* active_timer() {
    return active_command_timer.load(std::memory_order_acquire);
}

// While it lives the host is in a call of this name (a string literal), for the active timer.
class HostCallScope {
  public:
    explicit HostCallScope(const char* name) {
        if (active_timer()) [[unlikely]]
            begin(name);
    }
    ~HostCallScope() {
        if (call_.name) [[unlikely]]
            end();
    }
    HostCallScope(const HostCallScope&) = delete;
    HostCallScope& operator=(const HostCallScope&) = delete;

  private:
    void begin(const char* name);
    void end();
    HostCall call_{};
};

}  // namespace anymps::runtime
