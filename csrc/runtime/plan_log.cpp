#include "runtime/plan_log.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <unordered_set>

#include "runtime/device.h"
#include "runtime/launch.h"
#include "vulkan/instance.h"
#include "vulkan/pipeline.h"

namespace anymps::runtime {
namespace {

// Whether a word is among those of ANYMPS_LOG, with commas and spaces between them.
bool has_word(std::string_view word) {
    const char* value = std::getenv("ANYMPS_LOG");
    std::string_view rest = value == nullptr ? "" : value;
    constexpr std::string_view kBetween = ", \t";
    while (!rest.empty()) {
        const size_t end = std::min(rest.find_first_of(kBetween), rest.size());
        if (rest.substr(0, end) == word) return true;
        rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    return false;
}

// One write, so that lines of several threads do not mix.
void print(const std::string& line) {
    std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

bool logs_plans() {
    static const bool logs = has_word("plan");
    return logs;
}

void log_plan(std::string_view op, const std::string& text) {
    static auto& mutex = *new std::mutex;
    static auto& printed = *new std::unordered_set<std::string>;
    const std::string line = "ANYMPS_LOG plan: " + std::string(op) + ' ' + text + '\n';
    const std::lock_guard lock(mutex);
    if (printed.insert(line).second) print(line);
}

bool logs_dispatches() {
    static const bool logs = has_word("dispatch");
    return logs;
}

void log_dispatch(const Launch& launch) {
    const Grid& grid = launch.grid;
    const auto number = [](uint32_t n) { return std::to_string(n); };
    std::string line = "ANYMPS_LOG dispatch: " + launch.pipeline.name() + ", grid ";
    line += (launch.grid_address != 0 ? "in memory"
                                      : number(grid.x) + " x " + number(grid.y) + " x " + number(grid.z));
    line += ", " + std::to_string(launch.args.size()) + " bytes of arguments, ";
    const double seconds = dispatch_seconds(device_info(), launch.accesses, launch.work);
    line += std::to_string(static_cast<uint64_t>(std::ceil(1e6 * seconds))) + " us on a slow device";
    const double asked = device_info().max_submission_seconds();
    const double limit = asked > 0 ? asked : vulkan::DeviceInfo::kMaxSubmissionSeconds;
    if (const size_t parts = parts_of(launch, seconds, limit).size(); parts > 1)
        line += ", in " + std::to_string(parts) + " parts";
    print(line + '\n');
}

}  // namespace anymps::runtime
