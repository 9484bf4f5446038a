#include "runtime/exit.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/library.h>

#include <exception>

#include "runtime/command_encoder.h"
#include "runtime/device.h"

namespace anymps::runtime {

void drain() noexcept {
    if (in_bad_fork()) return;  // the threads and the queue are the parent's
    try {
        torch::autograd::Engine::get_default_engine().stop();
        if (device_created()) {
            auto& stream = encoder();
            stream.wait(stream.submit());
        }
    } catch (const std::exception&) {
        // A lost device is of no interest any more.
    }
}

namespace {

TORCH_LIBRARY_FRAGMENT(anymps, m) {
    m.def("drain() -> ()", [] { drain(); });
}

}  // namespace

}  // namespace anymps::runtime
