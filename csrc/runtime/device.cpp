#include "runtime/device.h"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

#include "vulkan/check.h"
#include "vulkan/device.h"

namespace anymps::runtime {
namespace {

std::atomic<bool> g_created{false};
std::atomic<bool> g_bad_fork{false};

// What the first question finds out. Lives until the process ends: drivers and threads of other libraries may
// still use the device while static objects are destroyed.
struct Probe {
    vulkan::Instance* instance = nullptr;
    const vulkan::PhysicalDevice* chosen = nullptr;
    std::string reason;
};

std::string environment(const char* name) {
    const char* value = std::getenv(name);
    return value ? value : "";
}

std::string describe(const std::vector<vulkan::PhysicalDevice>& devices) {
    std::string text;
    for (const auto& d : devices) {
        text += (text.empty() ? "" : "; ") + d.info.name + (d.unsuitable.empty() ? "" : ": " + d.unsuitable);
    }
    return text;
}

Probe probe() {
    Probe result;
    try {
        result.instance = new vulkan::Instance();
    } catch (const vulkan::Error& error) {
        result.reason = error.result() == VK_ERROR_INCOMPATIBLE_DRIVER
                            ? "No Vulkan driver is installed. Install one: apt install mesa-vulkan-drivers."
                            : error.what();
        return result;
    }
    const auto& devices = result.instance->physical_devices();
    const std::string selection = environment("ANYMPS_DEVICE");
    const int index = vulkan::choose_device(devices, selection);
    if (index >= 0) {
        result.chosen = &devices[index];
    } else if (devices.empty()) {
        result.reason = "No Vulkan device was found. Install a driver: apt install mesa-vulkan-drivers.";
    } else if (!selection.empty()) {
        result.reason = "ANYMPS_DEVICE=" + selection +
                        " names none of the suitable Vulkan devices: " + describe(devices) + ".";
    } else {
        result.reason = "No Vulkan device is suitable: " + describe(devices) + ".";
    }
    return result;
}

const Probe& probed() {
    static const Probe* const result = new Probe(probe());
    return *result;
}

void save_pipelines() {
    if (!in_bad_fork()) device().save_pipeline_cache(cache_folder());
}

}  // namespace

bool in_bad_fork() noexcept {
    return g_bad_fork.load(std::memory_order_relaxed);
}

bool device_created() noexcept {
    return g_created.load(std::memory_order_acquire);
}

void check_not_forked() {
    TORCH_CHECK(
        !in_bad_fork(),
        "Cannot re-initialize MPS in forked subprocess. To use MPS with multiprocessing, you must use the "
        "'spawn' start method");
}

bool device_available() noexcept {
    if (in_bad_fork()) return false;
    try {
        return probed().chosen != nullptr;
    } catch (...) {
        return false;
    }
}

std::string unavailable_reason() {
    if (in_bad_fork())
        return "This process was forked from one that had used the mps device; start it by 'spawn'.";
    return probed().reason;
}

std::vector<std::string> device_list() {
    std::vector<std::string> lines;
    if (in_bad_fork() || probed().instance == nullptr) return lines;
    for (const auto& d : probed().instance->physical_devices()) {
        const std::string note = &d == probed().chosen ? "chosen" : d.unsuitable;
        lines.push_back(d.info.name + (note.empty() ? "" : ": " + note));
    }
    return lines;
}

const vulkan::DeviceInfo& device_info() {
    check_not_forked();
    TORCH_CHECK(probed().chosen, "The mps device is not available: ", probed().reason);
    return probed().chosen->info;
}

const vulkan::Device& device() {
    check_not_forked();
    static const vulkan::Device* const created = [] {
        device_info();  // raises when there is none
        auto* d = new vulkan::Device(*probed().instance, *probed().chosen);
        d->load_pipeline_cache(cache_folder());
        g_created.store(true, std::memory_order_release);
        pthread_atfork(nullptr, nullptr, [] { g_bad_fork.store(true, std::memory_order_relaxed); });
        std::atexit(save_pipelines);
        return d;
    }();
    return *created;
}

std::string cache_folder() {
    if (std::string folder = environment("ANYMPS_CACHE_DIR"); !folder.empty()) return folder;
    if (std::string folder = environment("XDG_CACHE_HOME"); !folder.empty()) return folder + "/torch_anymps";
    return environment("HOME") + "/.cache/torch_anymps";
}

}  // namespace anymps::runtime
