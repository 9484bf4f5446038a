// The device's stream. There is one, and it runs its commands in order, so every c10::Stream of the device
// names the same queue: waiting between streams is already done.
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

// True when everything recorded so far has completed. Sends what is recorded to the queue.
bool stream_idle();

// Waits for everything recorded so far; raises a pending device assert as torch.AcceleratorError.
// Does nothing when the device was never opened.
void synchronize_device();

}  // namespace anymps::runtime
