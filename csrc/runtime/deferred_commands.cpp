#include "runtime/deferred_commands.h"

#include <utility>

#include "vulkan/pipeline.h"

namespace anymps::runtime {

void DeferredCommands::push(const vulkan::Pipeline* pipeline, std::function<void()> record) {
    while (commands_.size() >= kMax) record_first();
    commands_.push_back({pipeline, std::move(record)});
}

void DeferredCommands::record_built() {
    while (!commands_.empty()) {
        const vulkan::Pipeline* pipeline = commands_.front().pipeline;
        if (pipeline != nullptr && !pipeline->built()) return;
        record_first();
    }
}

void DeferredCommands::record_all() {
    while (!commands_.empty()) record_first();
}

void DeferredCommands::record_first() {
    const Command command = std::move(commands_.front());
    commands_.pop_front();
    command.record();
}

}  // namespace anymps::runtime
