#include "runtime/side_work.h"

#include <atomic>
#include <mutex>
#include <utility>

namespace anymps::runtime {
namespace {

struct SideWorks {
    std::mutex mutex;
    std::vector<std::shared_ptr<SideWork>> works;
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

bool taking_side_works() {
    return SideWorks::instance().taking.load(std::memory_order_relaxed);
}

std::shared_ptr<SideWork> note_side_work(std::string name, uint64_t bytes) {
    auto& all = SideWorks::instance();
    auto work = std::make_shared<SideWork>(SideWork{std::move(name), command_origin(), bytes});
    const std::lock_guard lock(all.mutex);
    if (all.taking) all.works.push_back(work);
    return work;
}

void begin_side_work(SideWork& work) {
    const std::lock_guard lock(SideWorks::instance().mutex);
    work.begin = host_time();
}

void end_side_work(SideWork& work) {
    const std::lock_guard lock(SideWorks::instance().mutex);
    work.end = host_time();
}

std::vector<SideWork> stop_side_works() {
    auto& all = SideWorks::instance();
    const std::lock_guard lock(all.mutex);
    all.taking = false;
    std::vector<SideWork> works;
    for (const auto& noted : std::exchange(all.works, {})) {
        SideWork& work = works.emplace_back(*noted);
        if (work.begin == 0) work.begin = work.origin.host_begin;
        if (work.end == 0) work.end = host_time();
    }
    return works;
}

}  // namespace anymps::runtime
