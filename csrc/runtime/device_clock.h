// When the device did something, by the host's clock.
#pragma once

#include <cstdint>
#include <optional>

namespace anymps::vulkan {
class Device;
}

namespace anymps::runtime {

// The device's ticks against the host's clock at two moments, a line between them. Not thread-safe.
class DeviceClock {
  public:
    // The first moment; nothing where the driver cannot read both clocks at once (calibrated timestamps).
    void start(const vulkan::Device& device);
    // The second moment. Where there are no calibrated timestamps it writes a timestamp and waits for it, a
    // few times: right to half of the shortest such wait (about 50 us).
    void stop(const vulkan::Device& device);

    // Nanoseconds since the epoch. Needs stop().
    int64_t nanoseconds(uint64_t ticks) const;
    // Between two timestamps; the counter may have wrapped at its valid bits.
    double duration_ns(uint64_t first, uint64_t last) const;

    // Whether its times come from calibrated timestamps.
    bool calibrated() const { return calibrated_; }

  private:
    struct Moment {
        uint64_t ticks;
        int64_t ns;
    };
    std::optional<Moment> start_, stop_;
    bool calibrated_ = false;
    double period_ns_ = 1;
    uint32_t unused_bits_ = 0;
};

}  // namespace anymps::runtime
