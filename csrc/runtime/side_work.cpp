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
    auto work = std::make_shared<SideWork>();
    work->name = std::move(name);
    work->origin = command_origin();
    work->bytes = bytes;
    const std::lock_guard lock(all.mutex);
    if (all.taking) all.works.push_back(work);
    return work;
}

std::vector<SideSpan> stop_side_works() {
    auto& all = SideWorks::instance();
    const std::lock_guard lock(all.mutex);
    all.taking = false;
    std::vector<SideSpan> spans;
    for (const auto& work : std::exchange(all.works, {})) {
        const int64_t begin = work->begin, end = work->end;
        spans.push_back({work->name, work->origin, work->bytes, begin ? begin : work->origin.host_begin,
                         end ? end : host_time()});
    }
    return spans;
}

}  // namespace anymps::runtime
