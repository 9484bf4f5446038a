#include "runtime/exit.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/library.h>

#include <chrono>
#include <exception>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/command_encoder.h"
#include "runtime/compile_threads.h"
#include "runtime/device.h"

namespace anymps::runtime {

namespace {

std::mutex g_mutex;
std::vector<void (*)()> g_before;  // guarded by g_mutex

constexpr auto kPatience = std::chrono::seconds(10);  // as long as autograd itself waits

bool autograd_thread_lives() {
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
        std::ifstream file(task.path() / "comm");
        std::string name;
        if (std::getline(file, name) && name.starts_with("pt_autograd_")) return true;
    }
    return false;
}

// Autograd counts a thread as ended before it gives back its state of the interpreter, for which it needs the
// GIL once more: only its disappearance is the end.
void wait_for_autograd_threads() {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (autograd_thread_lives() && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
}

}  // namespace

void before_drain(void (*function)()) {
    const std::lock_guard lock(g_mutex);
    g_before.push_back(function);
}

void drain() noexcept {
    if (in_bad_fork()) return;  // the threads and the queue are the parent's
    try {
        {
            const std::lock_guard lock(g_mutex);
            for (const auto function : g_before) function();
        }
        torch::autograd::Engine::get_default_engine().stop();
        wait_for_autograd_threads();
        if (device_created()) {
            finish_compiling();
            auto& stream = encoder();
            stream.wait(stream.submit());
        }
    } catch (const std::exception&) {
        // A lost device or an unreadable /proc is of no interest any more.
    }
}

namespace {

TORCH_LIBRARY_FRAGMENT(anymps, m) {
    m.def("drain() -> ()", [] { drain(); });
}

}  // namespace

}  // namespace anymps::runtime
