// torch.profiler on mps: a child profiler of Kineto, PyTorch's tracing library. It notes whose operator a
// command is, and hands out a GPU activity a command and a host activity a call when the trace ends.
#include <libkineto.h>
#include <output_base.h>

#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/command_timer.h"
#include "runtime/device.h"
#include "runtime/memory_history.h"
#include "runtime/side_work.h"
#include "vulkan/device.h"

namespace anymps::runtime {
namespace {

using libkineto::ActivityType;
using libkineto::GenericTraceActivity;

constexpr int32_t kDevice = 0, kQueue = 0, kBeside = 1;

// A launch's own number, which joins its two activities and their arrow. Kineto's flows are of 32 bits.
std::atomic<uint32_t> next_launch{1};
std::atomic<uint64_t> next_session{1};

// What traces that begin from now on take of the device.
enum class Mode { kOn, kOff, kWait };
std::atomic<Mode> g_mode{Mode::kOn};

struct Activity {
    ActivityType type;
    std::string name;
    const char* call;  // the host's side
};

Activity activity_of(const TimedCommand& command) {
    switch (command.kind) {
        case Command::Kind::kUpload:
            return {ActivityType::GPU_MEMCPY, "Memcpy HtoD", "vkCmdCopyBuffer"};
        case Command::Kind::kDownload:
            return {ActivityType::GPU_MEMCPY, "Memcpy DtoH", "vkCmdCopyBuffer"};
        case Command::Kind::kCopy:
            return {ActivityType::GPU_MEMCPY, "Memcpy DtoD", "vkCmdCopyBuffer"};
        case Command::Kind::kFill:
            return {ActivityType::GPU_MEMSET, "Memset", "vkCmdFillBuffer"};
        case Command::Kind::kDispatchIndirect:
            return {ActivityType::CONCURRENT_KERNEL, {}, "vkCmdDispatchIndirect"};
        default:
            return {ActivityType::CONCURRENT_KERNEL, {}, "vkCmdDispatch"};
    }
}

class Session final : public libkineto::IActivityProfilerSession {
  public:
    Session()
        : timer_(g_mode == Mode::kWait ? CommandTimer::Isolation::kWait : CommandTimer::Isolation::kNone,
                 [this](TimedCommand&& command) { commands_.push_back(std::move(command)); }) {}

    ~Session() override { tell_memory(false); }

    void start() override {
        tell_memory(true);
        if (g_mode == Mode::kOff || !device_available()) return;
        try {
            timer_.activate();
            start_side_works();
        } catch (const c10::Error& error) {
            errors_.emplace_back(error.what_without_backtrace());
            TORCH_WARN("torch.profiler shows nothing of the mps device: ", errors_.back());
        }
    }

    void stop() override {
        tell_memory(false);
        try {
            timer_.deactivate();
            side_works_ = stop_side_works();
        } catch (const std::exception& error) {
            errors_.emplace_back(error.what());
        }
    }

    std::vector<std::string> errors() override { return errors_; }
    void processTrace(libkineto::ActivityLogger&) override {}

    void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked,
                      int64_t begin, int64_t end) override {
        buffer_->span = libkineto::TraceSpan(begin, end, "mps");
        buffer_->gpuOpCount = static_cast<int>(commands_.size());
        // A replay's commands are handed out after those that were recorded behind it.
        const DeviceClock& clock = timer_.clock();
        std::stable_sort(commands_.begin(), commands_.end(), [&](const auto& a, const auto& b) {
            return clock.duration_ns(a.first, b.first) > 0;
        });
        for (const TimedCommand& command : commands_) add(command, logger, linked);
        for (const SideWork& work : side_works_) add(work, logger, linked);
        for (const HostCall& call : timer_.host_calls()) add(call, logger, linked);
        for (const auto& [user, span] : annotations_) annotate(user, span, logger, linked);
    }

    std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
        if (commands_.empty()) return nullptr;
        return std::make_unique<libkineto::DeviceInfo>(libkineto::DeviceInfo{
            kDevice, libkineto::kExceedMaxPid, "mps:0 (" + device_info().name + ")", "GPU 0"});
    }

    std::vector<libkineto::ResourceInfo> getResourceInfos() override {
        if (commands_.empty()) return {};
        std::vector<libkineto::ResourceInfo> lanes{{kQueue, kQueue, kDevice, "queue 0"}};
        if (!side_works_.empty()) lanes.emplace_back(kBeside, kBeside, kDevice, "collectives");
        return lanes;
    }

    // What HTA and TensorBoard read. No override: later versions of Kineto may not ask.
    std::string getDeviceProperties() {
        const vulkan::DeviceInfo& info = device_info();
        uint64_t bytes = 0;
        for (const auto& heap : info.heaps) bytes += heap.device_local ? heap.bytes : 0;
        return "{\"id\": 0, \"name\": \"" + info.name + "\", \"totalGlobalMem\": " + std::to_string(bytes) +
               ", \"numSms\": " + std::to_string(info.reported_compute_units) + "}";
    }

    std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }

    void pushCorrelationId(uint64_t id) override { push_correlation(number_, id); }
    void popCorrelationId() override { pop_correlation(number_); }
    void pushUserCorrelationId(uint64_t id) override {
        const uint64_t below = push_user_correlation(number_, id);
        const std::lock_guard lock(mutex_);
        enclosing_[id] = below;
    }
    void popUserCorrelationId() override { pop_user_correlation(number_); }

  private:
    struct Span {
        int64_t begin, end;
    };

    void tell_memory(bool tell) {
        if (std::exchange(memory_told_, tell) != tell) profiler_sessions += tell ? 1 : -1;
    }

    GenericTraceActivity& emplace(ActivityType type, const std::string& name, int64_t begin, int64_t end) {
        buffer_->emplace_activity(buffer_->span, type, name);
        GenericTraceActivity& activity = *buffer_->activities.back();
        activity.startTime = begin;
        activity.endTime = end;
        return activity;
    }

    // The operator that something was done for, or the annotation where there is none.
    static const libkineto::ITraceActivity* link(const CommandOrigin& origin,
                                                 const libkineto::getLinkedActivityCallback& linked) {
        const uint64_t id = origin.correlation ? origin.correlation : origin.user_correlation;
        return id ? linked(static_cast<int32_t>(id)) : nullptr;
    }

    GenericTraceActivity& emplace_host(const char* name, const CommandOrigin& origin,
                                       const libkineto::ITraceActivity* link) {
        auto& host = emplace(ActivityType::PRIVATEUSE1_RUNTIME, name, origin.host_begin, origin.host_end);
        host.device = libkineto::processId();
        host.resource = host.threadId = origin.thread;
        host.linked = link;
        return host;
    }

    void add(const TimedCommand& command, libkineto::ActivityLogger& logger,
             const libkineto::getLinkedActivityCallback& linked) {
        const CommandOrigin& origin = command.origin;
        const Activity what = activity_of(command);
        const std::string_view label = command.name;
        const bool is_kernel = what.type == ActivityType::CONCURRENT_KERNEL;
        const size_t bracket = is_kernel ? label.find('[') : std::string_view::npos;
        const Span span{timer_.clock().nanoseconds(command.first), timer_.clock().nanoseconds(command.last)};
        const auto* const link = Session::link(origin, linked);
        // A graph's commands are one call of the host.
        const bool first_of_call = command.graph_position <= 1;
        if (first_of_call) launch_ = next_launch++;

        auto& device = emplace(what.type, is_kernel ? std::string(label.substr(0, bracket)) : what.name,
                               span.begin, span.end);
        device.device = kDevice;
        device.resource = kQueue;
        device.id = link ? static_cast<int32_t>(launch_) : 0;
        device.linked = link;
        if (first_of_call) {
            device.flow.id = launch_;
            device.flow.type = libkineto::kLinkAsyncCpuGpu;
            device.flow.start = 0;
        }
        describe(device, command, bracket, span);
        device.log(logger);

        if (first_of_call) {
            auto& host =
                emplace_host(command.graph_position ? "vkQueueSubmit (graph)" : what.call, origin, link);
            host.id = device.id;
            host.flow.id = launch_;
            host.flow.type = libkineto::kLinkAsyncCpuGpu;
            host.flow.start = 1;
            host.addMetadata("correlation", launch_);
            host.log(logger);
        }
        note_annotations(origin.user_correlation, span);
    }

    void describe(GenericTraceActivity& activity, const TimedCommand& command, size_t bracket,
                  const Span& span) {
        activity.addMetadata("device", kDevice);
        activity.addMetadata("stream", kQueue);
        activity.addMetadata("correlation", launch_);
        if (activity.activityType == ActivityType::CONCURRENT_KERNEL) {
            const Grid& grid = command.grid;
            if (command.kind == Command::Kind::kDispatchIndirect) {
                activity.addMetadataQuoted("grid", "in memory");
            } else {
                activity.addMetadata("grid", "[" + std::to_string(grid.x) + ", " + std::to_string(grid.y) +
                                                 ", " + std::to_string(grid.z) + "]");
            }
            if (bracket != std::string_view::npos)
                activity.addMetadata("specialization", std::string(command.name.substr(bracket)));
        }
        const uint64_t bytes = activity.activityType == ActivityType::GPU_MEMCPY
                                   ? command.bytes_written
                                   : command.bytes_read + command.bytes_written;
        activity.addMetadata("bytes", bytes);
        const double ns = static_cast<double>(std::max<int64_t>(span.end - span.begin, 1));
        activity.addMetadata("memory bandwidth (GB/s)", static_cast<double>(bytes) / ns);
        if (command.graph_position) activity.addMetadata("graph node id", command.graph_position);
        const CommandOrigin& origin = command.origin;
        if (!command.graph_position && !origin.shape.empty())
            activity.addMetadataQuoted("sizes", origin.shape);
        if (origin.operations > 0) {
            activity.addMetadata("operations", origin.operations);
            activity.addMetadata("TFLOP/s", origin.operations / ns * 1e-3);
        }
    }

    void add(const SideWork& work, libkineto::ActivityLogger& logger,
             const libkineto::getLinkedActivityCallback& linked) {
        auto& device = emplace(ActivityType::CONCURRENT_KERNEL, work.name, work.begin, work.end);
        device.device = kDevice;
        device.resource = kBeside;
        device.linked = link(work.origin, linked);
        device.id = device.linked ? static_cast<int32_t>(next_launch++) : 0;
        device.addMetadata("device", kDevice);
        device.addMetadata("stream", kBeside);
        device.addMetadata("bytes", work.bytes);
        device.log(logger);
    }

    void add(const HostCall& call, libkineto::ActivityLogger& logger,
             const libkineto::getLinkedActivityCallback& linked) {
        const auto* const link = Session::link(call.origin, linked);
        auto& host = emplace_host(call.name, call.origin, link);
        host.id = link ? static_cast<int32_t>(next_launch++) : 0;
        host.log(logger);
    }

    // Annotations of torch.profiler.record_function last on the device from their first command to the last.
    void note_annotations(uint64_t user, const Span& span) {
        while (user != 0) {
            auto [found, is_new] = annotations_.try_emplace(user, span);
            if (!is_new) {
                found->second.begin = std::min(found->second.begin, span.begin);
                found->second.end = std::max(found->second.end, span.end);
            }
            const auto outer = enclosing_.find(user);
            user = outer == enclosing_.end() ? 0 : outer->second;
        }
    }

    void annotate(uint64_t user, const Span& span, libkineto::ActivityLogger& logger,
                  const libkineto::getLinkedActivityCallback& linked) {
        const auto* const host = linked(static_cast<int32_t>(user));
        if (!host) return;
        auto& device = emplace(ActivityType::GPU_USER_ANNOTATION, host->name(), span.begin, span.end);
        device.device = kDevice;
        device.resource = kQueue;
        device.id = static_cast<int32_t>(user);  // not linked: its time would count as the annotation's own
        device.log(logger);
    }

    const uint64_t number_ = next_session++;
    bool memory_told_ = false;
    std::vector<std::string> errors_;
    std::vector<TimedCommand> commands_;
    std::vector<SideWork> side_works_;
    std::unique_ptr<libkineto::CpuTraceBuffer> buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    std::map<uint64_t, Span> annotations_;
    uint32_t launch_ = 0;
    std::mutex mutex_;  // guards the next one until the end of the trace
    std::unordered_map<uint64_t, uint64_t>
        enclosing_;       // of an annotation: the one around it in its thread, or 0
    CommandTimer timer_;  // ends before what it fills
};

class Profiler final : public libkineto::IActivityProfiler {
  public:
    const std::string& name() const override {
        static const std::string name = "mps";
        return name;
    }
    const std::set<ActivityType>& availableActivities() const override {
        static const std::set<ActivityType> types{ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY,
                                                  ActivityType::GPU_MEMSET,
                                                  ActivityType::GPU_USER_ANNOTATION};
        return types;
    }
    // Whatever is asked for: PyTorch has no activity of mps to ask by, and asks for the CPU's alone.
    std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>&,
                                                                   const libkineto::Config&) override {
        return std::make_unique<Session>();
    }
    std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t,
                                                                   const std::set<ActivityType>& types,
                                                                   const libkineto::Config& config) override {
        return configure(types, config);
    }
};

const bool registered = [] {
    libkineto::api().registerProfilerFactory([] { return std::make_unique<Profiler>(); });
    return true;
}();

TORCH_LIBRARY_FRAGMENT(anymps, m) {
    // "on"; "off": nothing of the device; "wait": the host waits for each command.
    m.def("set_trace_mode(str mode) -> ()", [](const std::string& mode) {
        TORCH_CHECK(mode == "on" || mode == "off" || mode == "wait", "no mode of traces: ", mode);
        g_mode = mode == "on" ? Mode::kOn : mode == "off" ? Mode::kOff : Mode::kWait;
    });
}

}  // namespace
}  // namespace anymps::runtime
