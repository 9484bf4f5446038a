#include "gemm/tuning.h"

#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <mutex>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <utility>
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

// What this thread asks for while it calls operators.
struct Wishes {
    uint32_t plan = 0;  // the number of the plan that it wants; 0: none
    bool listing = false;
    std::vector<std::string> listed;  // texts of candidates
};
thread_local Wishes t_wishes;

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

    // The number of a plan's text, by which threads want it.
    uint32_t number_of(const std::string& text) {
        const std::lock_guard lock(mutex_);
        const auto found = std::find(wanted_.begin(), wanted_.end(), text);
        if (found != wanted_.end()) return static_cast<uint32_t>(found - wanted_.begin()) + 1;
        TORCH_CHECK(wanted_.size() < kMaxWanted, "More than ", kMaxWanted, " plans are wanted");
        wanted_.push_back(text);
        return static_cast<uint32_t>(wanted_.size());
    }

    void check_number(int64_t number) {
        const std::lock_guard lock(mutex_);
        TORCH_CHECK(number >= 0 && number <= static_cast<int64_t>(wanted_.size()), "No plan has the number ",
                    number);
    }

    // A candidate; nothing where the problem has none of this number.
    std::optional<Plan> wanted(const vulkan::DeviceInfo& device, const GemmProblem& problem,
                               uint32_t number) {
        const std::string text = [&] {
            const std::lock_guard lock(mutex_);
            return wanted_.at(number - 1);
        }();
        for (const Plan& plan : candidate_plans(device, problem)) {
            if (text_of(plan) == text) return plan;
        }
        return std::nullopt;
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

    static constexpr size_t kMaxWanted = 0xffff;

    std::mutex mutex_;
    std::vector<std::string> wanted_;  // plans by number, from 1 on
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
        uint32_t wanted = 0;
        bool used = false;
    };
    std::array<Slot, kSlots> slots;
    uint32_t generation = 0;
};

}  // namespace

Plan choose_plan(const vulkan::DeviceInfo& device, const GemmProblem& problem, bool cold) {
    static Tuning& tuning = Tuning::instance();
    const uint32_t wanted = t_wishes.plan;
    if (t_wishes.listing && !cold) [[unlikely]] {
        for (const Plan& plan : candidate_plans(device, problem)) t_wishes.listed.push_back(text_of(plan));
        return plan_by_model(device, problem);
    }
    if (tuning.exploring.load(std::memory_order_relaxed) && wanted == 0) [[unlikely]]
        return cold ? plan_by_model(device, problem) : tuning.plan(device, problem);
    static thread_local Memo memo;
    const uint32_t generation = tuning.generation.load(std::memory_order_acquire);
    if (memo.generation != generation) {
        memo = {};
        memo.generation = generation;
    }
    Memo::Slot& slot = memo.slots[(hash(problem) + wanted) % Memo::kSlots];
    if (slot.used && slot.wanted == wanted && slot.problem == problem) return slot.plan;
    const auto found = wanted == 0 ? std::nullopt : tuning.wanted(device, problem, wanted);
    if (!found && tuning.exploring.load(std::memory_order_relaxed)) return plan_by_model(device, problem);
    slot = {problem, found ? *found : tuning.plan(device, problem), wanted, true};
    return slot.plan;
}

uint32_t plan_generation() {
    const Tuning& tuning = Tuning::instance();
    if (tuning.exploring.load(std::memory_order_relaxed) || t_wishes.listing) return 0;
    return tuning.generation.load(std::memory_order_acquire) + (t_wishes.plan << 16);
}

std::string profile_label(const Plan& plan, std::string sizes) {
    return plan.trial == 0 ? sizes : sizes + "; trial " + std::to_string(plan.trial);
}

namespace {

TORCH_LIBRARY_FRAGMENT(anymps, m) {
    m.def("start_tuning() -> ()", [] { Tuning::instance().start(); });
    m.def("stop_tuning() -> str[]", [] { return Tuning::instance().stop(); });
    m.def("reload_tiles() -> ()", [] { Tuning::instance().reload(); });
    // For torch.compile(mode="max-autotune"), of the calling thread: the plans that calls could take between
    // the first two; from the last on, calls take the plan of that number (of a text so listed), until it is
    // 0.
    m.def("start_listing_plans() -> ()", [] { t_wishes.listing = true; });
    m.def("stop_listing_plans() -> str[]", [] {
        t_wishes.listing = false;
        return std::exchange(t_wishes.listed, {});
    });
    m.def("plan_number(str plan) -> int",
          [](const std::string& plan) -> int64_t { return Tuning::instance().number_of(plan); });
    m.def("want_plan(int number) -> ()", [](int64_t number) {
        if (number != 0) Tuning::instance().check_number(number);
        t_wishes.plan = static_cast<uint32_t>(number);
    });
    m.def("tiles_file() -> str[]", [] {
        return std::vector<std::string>{file_path(), file_header(runtime::device_info())};
    });
}

}  // namespace
}  // namespace anymps::gemm
