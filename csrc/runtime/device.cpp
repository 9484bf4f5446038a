#include "runtime/device.h"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

#include "runtime/device_rates.h"
#include "vulkan/check.h"
#include "vulkan/device.h"

namespace anymps::runtime {
namespace {

std::atomic<bool> g_created{false};
std::atomic<bool> g_bad_fork{false};
std::atomic<int64_t> g_index{-1};  // given to set_device()
std::mutex g_creation;

// What the first question finds out. Lives until the process ends: drivers and threads of other libraries may
// still use the device while static objects are destroyed.
struct Probe {
    vulkan::Instance* instance = nullptr;
    const vulkan::PhysicalDevice* chosen = nullptr;  // unless set_device() was called
    std::vector<int> best;
    std::string reason;
};

std::string environment(const char* name) {
    const char* value = std::getenv(name);
    return value ? value : "";
}

// The number that a launcher has given this process on its machine; -1 for none.
int64_t local_rank() {
    const std::string text = environment("LOCAL_RANK");
    char* end = nullptr;
    const long long rank = std::strtoll(text.c_str(), &end, 10);
    return text.empty() || *end != '\0' ? -1 : rank;
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
    for (auto& d : result.instance->physical_devices()) load_device_rates(d.info);
    const auto& devices = result.instance->physical_devices();
    const std::string selection = environment("ANYMPS_DEVICE");
    result.best = vulkan::best_devices(devices);
    int index = vulkan::choose_device(devices, selection);
    if (selection.empty() && !result.best.empty() && local_rank() > 0) {
        index = result.best[local_rank() % result.best.size()];
    }
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

std::atomic<const Probe*> g_probe{nullptr};

// A forked child asks anew: llvmpipe keeps the memory of devices that it has listed in a file, in which
// parent and children would have their tensors in one place. No lock is held, as drivers fork while they are
// asked.
const Probe& probed() {
    if (const Probe* found = g_probe.load(std::memory_order_acquire)) return *found;
    const auto* made = new Probe(probe());
    const Probe* first = nullptr;
    if (!g_probe.compare_exchange_strong(first, made, std::memory_order_acq_rel)) return *first;
    [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, [] {
        if (!device_created()) g_probe.store(nullptr, std::memory_order_relaxed);
    });
    return *made;
}

const vulkan::PhysicalDevice* chosen() {
    const int64_t index = g_index.load(std::memory_order_acquire);
    if (index < 0) return probed().chosen;
    return &probed().instance->physical_devices()[probed().best[index]];
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
        return chosen() != nullptr;
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
        const std::string note = &d == chosen() ? "chosen" : d.unsuitable;
        lines.push_back(d.info.name + (note.empty() ? "" : ": " + note));
    }
    return lines;
}

const vulkan::DeviceInfo& device_info() {
    check_not_forked();
    TORCH_CHECK(chosen(), "The mps device is not available: ", probed().reason);
    return chosen()->info;
}

int device_count() {
    return in_bad_fork() ? 0 : static_cast<int>(probed().best.size());
}

void set_device(int64_t index) {
    check_not_forked();
    TORCH_CHECK(index >= 0 && index < device_count(), "Invalid device index ", index, ": this machine has ",
                device_count(), " devices for mps, counted from 0");
    const std::lock_guard lock(g_creation);
    const auto* wanted = &probed().instance->physical_devices()[probed().best[index]];
    TORCH_CHECK(!device_created() || wanted == chosen(), "set_device(", index,
                ") comes too late: this process uses ", chosen()->info.name,
                " already. Call it before the first tensor on mps.");
    g_index.store(index, std::memory_order_release);
}

bool is_own_index(int64_t index) {
    if (index <= 0) return true;
    return index == g_index.load(std::memory_order_acquire) || index == local_rank();
}

const vulkan::Device& device() {
    check_not_forked();
    static const vulkan::Device* const created = [] {
        const std::lock_guard lock(g_creation);
        device_info();  // raises when there is none
        auto* d = new vulkan::Device(*probed().instance, *chosen());
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
