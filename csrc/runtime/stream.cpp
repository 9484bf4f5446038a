#include "runtime/stream.h"

#include "runtime/command_encoder.h"
#include "runtime/device.h"

namespace anymps::runtime {

bool stream_idle() {
    auto& stream = encoder();
    return stream.completed(stream.submit());
}

void synchronize_device() {
    if (!device_created()) {
        device_info();  // raises where there is none
        return;
    }
    encoder().synchronize();
}

}  // namespace anymps::runtime
