#include "distributed/agreement.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace anymps::distributed {
namespace {

constexpr auto kLookAround = std::chrono::milliseconds(50);  // between checks that the others live
constexpr uint32_t kLeft = ~0u;

}  // namespace

Agreement::Agreement(const std::vector<SharedSegment>& segments, int rank, std::chrono::milliseconds timeout)
    : segments_(segments), rank_(rank), deadline_(std::chrono::steady_clock::now() + timeout) {}

bool Agreement::reach() {
    segments_[rank_].publish_stage(++stage_);
    ring();
    for (size_t rank = 0; rank < segments_.size(); ++rank) {
        while (holds() && segments_[rank].stage() < stage_) {
            const uint32_t seen = segments_[rank_].rings();
            if (!holds() || segments_[rank].stage() >= stage_) break;
            look_after(rank);
            segments_[rank_].sleep(seen, kLookAround);
        }
    }
    return holds();
}

bool Agreement::holds() const {
    return std::ranges::none_of(segments_, [](const auto& each) { return each.stage() == kLeft; });
}

void Agreement::leave() {
    segments_[rank_].publish_stage(kLeft);
    ring();
}

void Agreement::look_after(size_t rank) const {
    const std::string name = "rank " + std::to_string(rank);
    const bool failed = segments_[rank].failed(), ended = !segments_[rank].alive();
    const bool late = std::chrono::steady_clock::now() > deadline_;
    if (segments_[rank].stage() >= stage_ || !(failed || ended || late)) return;
    segments_[rank_].publish_failure();
    ring();
    throw std::runtime_error(late ? "Timed out waiting for " + name + "."
                                  : name + (failed ? " has given up." : " has ended."));
}

void Agreement::ring() const {
    for (const auto& segment : segments_) segment.ring();
}

}  // namespace anymps::distributed
