// The device's streams. All share one queue, which runs commands in the order in which they are recorded;
// what sets them apart is what they wait for (stream_waits.h).
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace anymps::runtime {

inline c10::Device mps_device() {
    return c10::Device(c10::DeviceType::MPS, 0);
}

inline c10::Stream default_stream() {
    return c10::Stream(c10::Stream::DEFAULT, mps_device());
}

inline c10::Stream stream_of(c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, mps_device(), id);
}

// True when everything recorded so far has completed, and what the stream waits for besides. Sends what is
// recorded to the queue.
bool stream_idle(const c10::Stream& stream);
// Waits for that; raises a pending device assert as torch.AcceleratorError.
void synchronize_stream(const c10::Stream& stream);

// Waits for everything recorded so far, and for what any stream waits for; raises a pending device assert as
// torch.AcceleratorError. Does nothing when the device was never opened.
void synchronize_device();

}  // namespace anymps::runtime
