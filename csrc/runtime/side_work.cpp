#include "runtime/side_work.h"

#include <atomic>
#include <mutex>
#include <utility>

namespace anymps::runtime {
namespace {

struct SideWorks {
    std::mutex mutex;
    std::vector<SideWork> works;
    std::atomic<bool> taking{false};

    // Leaked: works may end while static objects are destroyed.
    static SideWorks& instance() {
        static auto* works = new SideWorks;
        return *works;
    }
};

}  // namespace

void start_side_works() {
    auto& all = SideWorks::instance();
    const std::lock_guard lock(all.mutex);
    all.works.clear();
    all.taking = true;
}

std::vector<SideWork> stop_side_works() {
    auto& all = SideWorks::instance();
    const std::lock_guard lock(all.mutex);
    all.taking = false;
    return std::exchange(all.works, {});
}

bool taking_side_works() {
    return SideWorks::instance().taking.load(std::memory_order_relaxed);
}

void note_side_work(SideWork work) {
    auto& all = SideWorks::instance();
    const std::lock_guard lock(all.mutex);
    if (all.taking) all.works.push_back(std::move(work));
}

}  // namespace anymps::runtime
