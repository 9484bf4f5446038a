// Commands that wait for a pipeline, and all behind them, in their order.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>

namespace anymps::vulkan {
class Pipeline;
}

namespace anymps::runtime {

// Not thread-safe; owned by the encoder.
class DeferredCommands {
  public:
    bool empty() const { return commands_.empty(); }

    // record: records the command, once. pipeline: what it needs, or nullptr. Beyond kMax commands the first
    // ones are recorded, as by record_all().
    void push(const vulkan::Pipeline* pipeline, std::function<void()> record);

    // Records commands up to the first whose pipeline is not built.
    void record_built();

    // Records every command, and builds pipelines or waits for them.
    // Both throw what a command throws (vulkan::Error where the driver could not compile its kernel); that
    // one is left out then, and those behind it are still to be recorded.
    void record_all();

  private:
    static constexpr size_t kMax = 8192;  // some thousand bytes each at most, a step of training has 3,000

    void record_first();

    struct Command {
        const vulkan::Pipeline* pipeline;
        std::function<void()> record;
    };
    std::deque<Command> commands_;
};

}  // namespace anymps::runtime
