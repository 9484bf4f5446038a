#include "runtime/memory_history.h"

#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/library.h>

#include <unordered_map>
#include <utility>

#include "runtime/allocator.h"
#include "runtime/command_origin.h"
#include "runtime/json.h"

namespace anymps::runtime {

std::atomic<int> profiler_sessions{0};

void MemoryHistory::start(size_t max_entries, bool stacks) {
    events_.clear();
    max_entries_ = max_entries;
    stacks_ = stacks;
    enabled_ = true;
}

void MemoryHistory::stop() {
    enabled_ = stacks_ = false;
    events_.clear();
}

StackContext MemoryHistory::gather() {
    return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/false, /*cpp=*/false);
}

void MemoryHistory::note(const char* action, uint64_t address, size_t bytes, StackContext context) {
    if (max_entries_ == 0) return;
    if (events_.size() >= max_entries_) events_.pop_front();
    events_.push_back({action, address, bytes, host_time() / 1000, std::move(context)});
}

namespace {

// Stacks become numbers of a list, for many events have the same one.
class Stacks {
  public:
    uint64_t number(const StackContext& context) {
        if (!context) return 0;
        const auto [found, is_new] = numbers_.try_emplace(context.get(), tracebacks_.size() + 1);
        if (is_new) tracebacks_.push_back(torch::getCapturedTracebackFromContext(context));
        return found->second;
    }

    // {"frames": [{filename, line, name}, ...], "stacks": [[frame, ...], ...]}; the first stack is empty.
    std::string json() const {
        const torch::SymbolizedTracebacks symbols = torch::symbolize(tracebacks_);
        std::vector<std::vector<uint64_t>> stacks{{}};
        stacks.insert(stacks.end(), symbols.tracebacks.begin(), symbols.tracebacks.end());
        return JsonObject()
            .raw("frames", json_list(symbols.all_frames,
                                     [](const torch::unwind::Frame& frame) {
                                         return JsonObject()
                                             .text("filename", frame.filename)
                                             .number("line", frame.lineno)
                                             .text("name", frame.funcname)
                                             .str();
                                     }))
            .raw("stacks", json_list(stacks,
                                     [](const auto& stack) {
                                         return json_list(stack,
                                                          [](uint64_t f) { return std::to_string(f); });
                                     }))
            .str();
    }

  private:
    std::unordered_map<const c10::GatheredContext*, uint64_t> numbers_;
    std::vector<torch::CapturedTraceback*> tracebacks_;
};

std::string block_json(const BlockState& block, Stacks& stacks) {
    return JsonObject()
        .number("address", block.address)
        .number("size", block.bytes)
        .number("requested_size", block.requested)
        .text("state", block.used ? "active_allocated" : "inactive")
        .number("stack", stacks.number(block.context))
        .str();
}

std::string segment_json(const SegmentState& segment, Stacks& stacks) {
    uint64_t allocated = 0, requested = 0;
    for (const BlockState& block : segment.blocks) {
        if (!block.used) continue;
        allocated += block.bytes;
        requested += block.requested;
    }
    const std::string pool =
        "[" + std::to_string(segment.pool.first) + ", " + std::to_string(segment.pool.second) + "]";
    return JsonObject()
        .number("device", 0)
        .number("address", segment.address)
        .number("total_size", segment.bytes)
        .number("allocated_size", allocated)
        .number("active_size", allocated)
        .number("requested_size", requested)
        .number("stream", 0)
        .text("segment_type", segment.small ? "small" : "large")
        .raw("segment_pool_id", pool)
        .boolean("is_expandable", false)
        .raw("blocks",
             json_list(segment.blocks, [&](const auto& block) { return block_json(block, stacks); }))
        .str();
}

std::string event_json(const MemoryEvent& event, Stacks& stacks) {
    return JsonObject()
        .text("action", event.action)
        .number(std::string_view(event.action) == "oom" ? "device_free" : "addr", event.address)
        .number("size", event.bytes)
        .number("stream", 0)
        .number("time_us", static_cast<uint64_t>(event.time_us))
        .number("stack", stacks.number(event.context))
        .str();
}

// {"segments": [...], "trace": [...], "frames": [...], "stacks": [...]}, with numbers for stacks.
std::string snapshot_json() {
    const auto [segments, events] = allocator().snapshot();
    Stacks stacks;
    JsonObject result;
    result.raw("segments", json_list(segments, [&](const auto& s) { return segment_json(s, stacks); }));
    result.raw("trace", json_list(events, [&](const auto& e) { return event_json(e, stacks); }));
    return result.raw("symbols", stacks.json()).str();
}

TORCH_LIBRARY_FRAGMENT(anymps, m) {
    // max_entries: -1 stops.
    m.def("record_memory_history(int max_entries, bool stacks) -> ()",
          [](int64_t max_entries, bool stacks) { allocator().record_history(max_entries, stacks); });
    m.def("memory_snapshot() -> str", snapshot_json);
}

}  // namespace
}  // namespace anymps::runtime
