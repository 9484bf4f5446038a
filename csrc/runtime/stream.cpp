#include "runtime/stream.h"

#include "runtime/command_encoder.h"

namespace anymps::runtime {

bool stream_idle() {
    auto& stream = encoder();
    return stream.completed(stream.submit());
}

void synchronize_device() {
    encoder().synchronize();
}

}  // namespace anymps::runtime
