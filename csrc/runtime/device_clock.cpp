#include "runtime/device_clock.h"

#include <c10/util/Exception.h>
#include <time.h>

#include <limits>

#include "runtime/command_encoder.h"
#include "runtime/command_origin.h"
#include "vulkan/calibrated_time.h"
#include "vulkan/device.h"
#include "vulkan/query_pool.h"

namespace anymps::runtime {
namespace {

// Shorter spans give the driver's period: the few microseconds by which readings err would bend the line.
constexpr int64_t kMinSpan = 10'000'000;

int64_t monotonic_time() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000'000'000ll + now.tv_nsec;
}

// Other threads may take the processor between two readings: of several tries the shortest counts.
constexpr int kTries = 8;

// From CLOCK_MONOTONIC to nanoseconds since the epoch, as of now.
int64_t epoch_offset() {
    int64_t shortest = std::numeric_limits<int64_t>::max(), offset = 0;
    for (int i = 0; i < kTries; ++i) {
        const int64_t before = monotonic_time();
        const int64_t epoch = host_time();
        const int64_t after = monotonic_time();
        if (after - before >= shortest) continue;
        shortest = after - before;
        offset = epoch - before - shortest / 2;
    }
    return offset;
}

}  // namespace

void DeviceClock::start(const vulkan::Device& device) {
    period_ns_ = device.info().timestamp_period_ns;
    unused_bits_ = 64 - device.info().timestamp_valid_bits;
    if (const auto time = vulkan::calibrated_time(device)) {
        start_ = Moment{time->ticks, time->monotonic_ns + epoch_offset()};
    }
}

void DeviceClock::stop(const vulkan::Device& device) {
    if (const auto time = vulkan::calibrated_time(device)) {
        stop_ = Moment{time->ticks, time->monotonic_ns + epoch_offset()};
        calibrated_ = true;
        return;
    }
    const vulkan::QueryPool stamp(device, 1);
    auto& stream = encoder();
    stream.wait(stream.submit());
    int64_t shortest = std::numeric_limits<int64_t>::max();
    for (int i = 0; i < kTries; ++i) {
        const int64_t before = host_time();
        stream.write_timestamp(stamp, 0);
        stream.wait(stream.submit());
        const int64_t after = host_time();
        if (after - before >= shortest) continue;
        shortest = after - before;
        uint64_t ticks = 0;
        TORCH_INTERNAL_ASSERT(stamp.read(0, &ticks));
        stop_ = Moment{ticks, before + shortest / 2};
    }
}

double DeviceClock::duration_ns(uint64_t first, uint64_t last) const {
    const auto ticks = static_cast<int64_t>((last - first) << unused_bits_) >> unused_bits_;
    return static_cast<double>(ticks) * period_ns_;
}

int64_t DeviceClock::nanoseconds(uint64_t ticks) const {
    double scale = 1;
    if (start_ && stop_->ns - start_->ns >= kMinSpan) {
        scale = static_cast<double>(stop_->ns - start_->ns) / duration_ns(start_->ticks, stop_->ticks);
    }
    return stop_->ns - static_cast<int64_t>(duration_ns(ticks, stop_->ticks) * scale);
}

}  // namespace anymps::runtime
