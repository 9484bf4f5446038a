// Commands that are recorded once and replayed many times: what torch.accelerator.Graph and torch.compile's
// mode="reduce-overhead" stand on.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "runtime/argument_ring.h"
#include "runtime/generator.h"
#include "runtime/hazards.h"
#include "runtime/zeroed_words.h"
#include "vulkan/api.h"

namespace anymps::runtime {

struct Command;
class KeptCommands;

// A command buffer that is being recorded. Guarded by the encoder's lock.
struct Recording {
    VkCommandBuffer handle = VK_NULL_HANDLE;
    VkPipeline bound = VK_NULL_HANDLE;
    uint32_t commands = 0;
    Hazards hazards;                     // since the last barrier
    VkPipelineStageFlags barrier = 0;    // that waited since the last command
    double seconds = 0;                  // of the commands in it, by estimate
    std::vector<VkCommandBuffer> ended;  // of a graph: those before, each a submission of its own
    std::shared_ptr<KeptCommands> kept;  // of a graph
};

// Where a graph's random numbers begin in one replay: words that its kernels read there.
struct PhiloxBase {
    uint64_t address;
    PhiloxState state;
};

// A sequence of commands. Begin, end, replay and reset are for one thread at a time.
//
// A capture is bound to the thread that begins it and to threads that work for it, as autograd's do (those
// that take over c10's thread-local state). What they ask of the device is recorded and not run, and what
// they allocate comes from the graph's pool. The work of other threads goes to the stream meanwhile, as
// always, and never gets into the graph; they may capture graphs of their own at the same time.
//
// What needs the device to run (a synchronization, a copy to the host, an event) or too much memory of the
// graph (an upload of more than ArgumentRing::kMaxBytes) raises RuntimeError during a capture, which goes on
// without it. Values that are uploaded are constants of the graph.
//
// Memory: what is allocated during the capture, freed or not, belongs to the graph's pool until all graphs of
// that pool are gone; what a replay writes is valid until the next replay of a graph of the pool.
class CommandGraph {
  public:
    CommandGraph() = default;
    // Ends a capture, waits for the replays, gives up the pool.
    ~CommandGraph();
    CommandGraph(const CommandGraph&) = delete;
    CommandGraph& operator=(const CommandGraph&) = delete;

    // pool: that of another graph, which is captured and replayed before this one; {0, 0} for one of its own.
    // Raises RuntimeError where this thread captures already, or this graph has been captured.
    void capture_begin(c10::MempoolId_t pool);
    // Raises RuntimeError where this thread does not capture this graph.
    void capture_end();
    // Submits the commands, after everything recorded before. Any number of replays may be pending.
    void replay();
    // As new: waits for the replays.
    void reset();

    c10::MempoolId_t pool() const { return pool_; }
    uint32_t commands() const { return recording_.commands; }
    // Names of commands are kept from the next capture on.
    void keep_names() { keeps_names_ = true; }
    const std::vector<std::string>& names() const { return names_; }

    // While it is captured, for the encoder under its lock:
    Recording& recording() { return recording_; }
    ArgumentRing::Slice reserve(uint64_t bytes);  // of memory that lives as long as the graph
    void record(const Command& command, std::span<const Access> accesses);
    // What follows is another submission.
    void begin_submission();
    // Keeps memory that a command uses, even when the allocator gives its segment back.
    void retain(std::shared_ptr<const vulkan::Buffer> buffer);

    // While it is captured, for others: a place in what each replay takes from the sequence, and slots that
    // are zeros at this point of every replay.
    PhiloxState reserve_philox(const std::shared_ptr<PhiloxSequence>& sequence, uint64_t blocks);
    uint64_t zeroed_words(uint64_t slots);

  private:
    struct Capture;
    struct Draws {
        std::shared_ptr<PhiloxSequence> sequence;
        ZeroedWords base;  // memory that is never freed: kernels outside of the graph may read it, too
        uint64_t blocks = 0;
    };
    enum class State { kEmpty, kCapturing, kCaptured };

    void stop_capture();
    void release() noexcept;

    State state_ = State::kEmpty;
    std::shared_ptr<Capture> capture_;
    c10::MempoolId_t pool_{0, 0};
    VkCommandPool command_pool_ = VK_NULL_HANDLE;
    Recording recording_;
    uint64_t submission_ = 0;  // of the last replay
    std::vector<std::shared_ptr<vulkan::Buffer>> arguments_;
    uint64_t arguments_used_ = 0;  // of the last one
    std::set<std::shared_ptr<const vulkan::Buffer>> retained_;
    bool keeps_names_ = false;
    std::vector<std::string> names_;

    std::mutex mutex_;  // guards the rest
    std::list<Draws> draws_;
    std::vector<c10::DataPtr> zeroed_;
    uint64_t zeroed_used_ = 0;  // slots of the last one

    friend CommandGraph* find_capture();
};

// How many graphs are captured at the moment.
extern std::atomic<int> captures;
CommandGraph* find_capture();

// The graph that this thread captures, or nullptr.
inline CommandGraph* capturing() {
    return captures.load(std::memory_order_relaxed) == 0 ? nullptr : find_capture();
}

// Raises RuntimeError while this thread captures a graph. what: the subject of the sentence.
void check_not_capturing(const char* what);

// While it lives, this thread works outside of its capture: for what outlives the graph, and is made once.
class OutsideCapture {
  public:
    OutsideCapture();
    ~OutsideCapture();
};

}  // namespace anymps::runtime
