#include "gemm/tuning.h"

#include <c10/util/Exception.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <mutex>
#include <sstream>
#include <unordered_map>
#include <vector>

#include "runtime/device.h"
#include "runtime/device_rates.h"

namespace anymps::gemm {
namespace {

// One word of text, for the file.
std::string text_of(const GemmProblem& p) {
    std::ostringstream out;
    out << (p.convolution ? "c" : "") << (p.algo == ConvAlgo::Staged ? "" : "d")
        << static_cast<uint32_t>(p.arithmetic) << ':' << p.batch << ':' << p.m << ':' << p.n << ':' << p.k
        << ':' << p.floating << p.may_swap << p.k_contiguous << p.n_contiguous << p.may_split_k
        << p.vectorizable << ':' << p.max_k_per_split << ':' << std::hex << p.variant;
    return out.str();
}

std::string text_of(const Plan& p) {
    const std::string text = std::string(p.tile->kernel) + ':' + std::to_string(p.tile->m) + ':' +
                             std::to_string(p.swapped) + ':' + std::to_string(p.split_k);
    return p.tail_split == 1 ? text : text + ':' + std::to_string(p.tail_split);
}

uint64_t hash(const GemmProblem& p) {
    uint64_t value = p.variant;
    const uint64_t flags = p.floating | p.may_swap << 1 | p.k_contiguous << 2 | p.may_split_k << 3 |
                           p.n_contiguous << 4 | p.convolution << 5 | static_cast<uint64_t>(p.algo) << 16 |
                           p.vectorizable << 20 | static_cast<uint64_t>(p.arithmetic) << 6;
    for (const uint64_t word : {p.batch, p.m, p.n, p.k, p.max_k_per_split, flags}) {
        value = (value ^ word) * 0x9e3779b97f4a7c15ull;
        value ^= value >> 29;
    }
    return value;
}

// The file of winners: a first line that names device, driver and form, then a line a problem.
std::string file_header(const vulkan::DeviceInfo& device) {
    return runtime::measured_header(device, "tiles 1");
}

std::string file_path() {
    return runtime::cache_folder() + "/tiles.txt";
}

// What has been measured, and what is being. Guarded by a mutex but for `generation`.
class Tuning {
  public:
    static Tuning& instance() {
        static auto* tuning = new Tuning;
        return *tuning;
    }

    // Changes when remembered plans are no longer to be used.
    std::atomic<uint32_t> generation{1};
    std::atomic<bool> exploring{false};

    Plan plan(const vulkan::DeviceInfo& device, const GemmProblem& problem) {
        const std::lock_guard lock(mutex_);
        if (exploring) return next_trial(device, problem);
        if (!loaded_) load(device);
        const auto winner = winners_.empty() ? winners_.end() : winners_.find(text_of(problem));
        if (winner != winners_.end()) {
            for (const Plan& plan : candidate_plans(device, problem)) {
                if (text_of(plan) == winner->second) return plan;
            }
        }
        return plan_by_model(device, problem);
    }

    void start() {
        const std::lock_guard lock(mutex_);
        TORCH_CHECK(!exploring, "Tiles are being tuned already");
        trials_.clear();
        next_.clear();
        exploring = true;
        ++generation;
    }

    // Problem and plan of every trial, by number from 1 on.
    std::vector<std::string> stop() {
        const std::lock_guard lock(mutex_);
        exploring = false;
        loaded_ = false;  // the file may be written next
        ++generation;
        std::vector<std::string> lines;
        for (const Trial& trial : trials_) lines.push_back(trial.problem + ' ' + text_of(trial.plan));
        return lines;
    }

    void reload() {
        const std::lock_guard lock(mutex_);
        loaded_ = false;
        ++generation;
    }

  private:
    struct Trial {
        std::string problem;
        Plan plan;
    };
    struct Turns {
        uint32_t first, count, calls;  // trials [first, first + count) in turn
    };

    Plan next_trial(const vulkan::DeviceInfo& device, const GemmProblem& problem) {
        const std::string text = text_of(problem);
        const auto [found, is_new] = next_.try_emplace(text);
        Turns& turns = found->second;
        if (is_new) {
            turns = {static_cast<uint32_t>(trials_.size()), 0, 0};
            for (Plan plan : candidate_plans(device, problem)) {
                plan.trial = static_cast<uint32_t>(trials_.size()) + 1;
                trials_.push_back({text, plan});
                ++turns.count;
            }
        }
        return trials_[turns.first + turns.calls++ % turns.count].plan;
    }

    void load(const vulkan::DeviceInfo& device) {
        loaded_ = true;
        winners_.clear();
        std::ifstream file(file_path());
        std::string line;
        if (!file || !std::getline(file, line)) return;
        if (line != file_header(device)) {
            // Another device or driver: its winners say nothing here, and are no error.
            if (line.starts_with("torch-anymps tiles 1; ")) return;
            TORCH_WARN_ONCE("torch-anymps ignores ", file_path(),
                            ", which is not a file of tuned tiles. Delete it, or "
                            "write it anew by: python -m torch_anymps.tune");
            return;
        }
        while (std::getline(file, line)) {
            std::istringstream words(line);
            std::string problem, plan;
            if (words >> problem >> plan) winners_[problem] = plan;
        }
    }

    std::mutex mutex_;
    bool loaded_ = false;
    std::unordered_map<std::string, std::string> winners_;  // by problem
    std::unordered_map<std::string, Turns> next_;
    std::vector<Trial> trials_;
};

// The plans that this thread has used last.
struct Memo {
    static constexpr size_t kSlots = 256;
    struct Slot {
        GemmProblem problem;
        Plan plan;
        bool used = false;
    };
    std::array<Slot, kSlots> slots;
    uint32_t generation = 0;
};

}  // namespace

Plan choose_plan(const vulkan::DeviceInfo& device, const GemmProblem& problem, bool cold) {
    static Tuning& tuning = Tuning::instance();
    if (tuning.exploring.load(std::memory_order_relaxed)) [[unlikely]]
        return cold ? plan_by_model(device, problem) : tuning.plan(device, problem);
    static thread_local Memo memo;
    const uint32_t generation = tuning.generation.load(std::memory_order_acquire);
    if (memo.generation != generation) {
        memo = {};
        memo.generation = generation;
    }
    Memo::Slot& slot = memo.slots[hash(problem) % Memo::kSlots];
    if (!slot.used || slot.problem != problem) slot = {problem, tuning.plan(device, problem), true};
    return slot.plan;
}

uint32_t plan_generation() {
    const Tuning& tuning = Tuning::instance();
    return tuning.exploring.load(std::memory_order_relaxed)
               ? 0
               : tuning.generation.load(std::memory_order_acquire);
}

std::string profile_label(const Plan& plan, std::string sizes) {
    return plan.trial == 0 ? sizes : sizes + "; trial " + std::to_string(plan.trial);
}

namespace {

TORCH_LIBRARY_FRAGMENT(anymps, m) {
    m.def("start_tuning() -> ()", [] { Tuning::instance().start(); });
    m.def("stop_tuning() -> str[]", [] { return Tuning::instance().stop(); });
    m.def("reload_tiles() -> ()", [] { Tuning::instance().reload(); });
    m.def("tiles_file() -> str[]", [] {
        return std::vector<std::string>{file_path(), file_header(runtime::device_info())};
    });
}

}  // namespace
}  // namespace anymps::gemm
