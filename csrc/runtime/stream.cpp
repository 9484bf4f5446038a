#include "runtime/stream.h"

#include <torch/library.h>

#include <algorithm>

#include "runtime/command_encoder.h"
#include "runtime/device.h"
#include "runtime/stream_waits.h"

namespace anymps::runtime {

bool stream_idle(const c10::Stream& stream) {
    const uint64_t serial = encoder().submit();
    return encoder().completed(serial) && std::ranges::all_of(waits_of(stream.id()), &StreamWait::over);
}

void synchronize_stream(const c10::Stream& stream) {
    if (!device_created()) return synchronize_device();
    for (const StreamWait& wait : waits_of(stream.id())) wait.semaphore->wait(wait.value);
    encoder().synchronize();
}

void synchronize_device() {
    if (!device_created()) {
        device_info();  // raises where there is none
        return;
    }
    hold_for_all_streams();
    encoder().synchronize();
}

namespace {

TORCH_LIBRARY_FRAGMENT(anymps, m) {
    m.def("current_stream_id() -> int", [] { return current_stream_id(); });
    m.def("exchange_stream_id(int id) -> int", [](int64_t id) { return exchange_stream_id(id); });
}

}  // namespace

}  // namespace anymps::runtime
