// The Vulkan instance and what its physical devices can do.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "vulkan/api.h"
#include "vulkan/device_profile.h"
#include "vulkan/spirv.h"

namespace anymps::vulkan {

struct MemoryHeap {
    uint64_t bytes;
    bool device_local;
};

struct MemoryType {
    uint32_t heap;
    VkMemoryPropertyFlags properties;
};

// Lanes of a subgroup at most: kernels read ballots as 64 bits.
constexpr uint32_t kMaxLanes = 64;

// What the backend needs to know of a device; plain data, read once.
struct DeviceInfo {
    std::string name;
    std::string driver_name;
    std::string driver_info;
    uint32_t vendor_id = 0;
    uint32_t device_id = 0;
    uint32_t api_version = 0;
    uint32_t driver_version = 0;
    std::array<uint8_t, VK_UUID_SIZE> pipeline_cache_uuid{};
    std::array<uint8_t, 2 * VK_UUID_SIZE>
        external_uuid{};  // of device and driver, as other processes see them

    bool is_software = false;  // runs on CPU cores: barriers and shared memory are expensive there
    bool runs_on_cpu = false;  // so too where tests ask for the kernels of GPUs
    bool is_integrated = false;
    bool unified_memory =
        false;  // the whole device-local memory is host-visible and cached: CPU and GPU share it

    // Optional features, each with another way where it is absent.
    bool float16 = false;
    bool fused_multiply_add = false;  // GLSL's fma() rounds once
    bool int8 = false;
    bool float32_atomic_add = false;
    bool cooperative_matrix = false;           // 16 x 16 x 16 a subgroup, f16 factors and f32 sums
    bool cooperative_matrix_bfloat16 = false;  // the same with bf16 factors
    bool bfloat16 = false;
    bool external_memory_host = false;
    bool external_memory_fd = false;  // memory of one device in several processes
    bool dma_buf = false;             // memory of one device on another one
    bool subgroup_size_control = false;
    bool memory_budget = false;
    bool pipeline_statistics = false;  // asked for by ANYMPS_PIPELINE_STATISTICS=1, and there
    FloatControls float_controls;

    uint32_t reported_compute_units = 0;                                       // 0: the driver does not tell
    VkSubgroupFeatureFlags subgroup_features = VK_SUBGROUP_FEATURE_BASIC_BIT;  // in compute shaders
    uint32_t subgroup_size = 1;                                                // of kernels, unless they say
    uint32_t min_subgroup_size = 1;
    uint32_t max_subgroup_size = 1;
    uint32_t max_workgroup_size = 0;  // invocations
    uint32_t shared_memory_bytes = 0;
    uint32_t push_constant_bytes = 0;
    uint32_t queue_family = 0;
    uint32_t queues = 1;                    // 0: none beside the stream's
    uint64_t host_import_alignment = 4096;  // of memory that external_memory_host takes
    double timestamp_period_ns = 0;         // 0: no timestamps
    uint32_t timestamp_valid_bits = 0;
    uint64_t max_allocation_bytes = 0;  // that the driver promises: some give more
    std::vector<MemoryHeap> heaps;
    std::vector<MemoryType> memory_types;
    uint64_t max_buffer_bytes = 0;

    double asked_submission_seconds = -1;  // by ANYMPS_SUBMISSION_SECONDS; negative: not

    // Whether the memory of the device is the host's, by whatever names its heaps have.
    bool in_system_memory() const { return is_integrated || runs_on_cpu; }
    const DeviceProfile* profile = &find_profile(*this);  // to be found again where a property above changes

    // The most that a submission may take, by the estimate of runtime/dispatch_time.h, before kernel drivers
    // take the device for hung: amdgpu after 10 s (2 s by some settings), i915 by its heartbeat. 0: nobody
    // watches.
    static constexpr double kMaxSubmissionSeconds = 0.5;
    double max_submission_seconds() const {
        if (asked_submission_seconds >= 0) return asked_submission_seconds;
        return runs_on_cpu || !profile->watchdog ? 0 : kMaxSubmissionSeconds;
    }
    // Whether those that take longer are recorded in parts. NVIDIA's driver 580 has run parts of a grid
    // without their base.
    bool splits_dispatches() const { return max_submission_seconds() > 0 && profile->watchdog; }

    const SlowRates& slow_rates() const {
        return in_system_memory() ? profile->slow_integrated : profile->slow;
    }

    // Compute units to fill with work: a guess of the size of such GPUs where the driver does not tell.
    uint64_t compute_units() const {
        if (reported_compute_units != 0 && !is_software) return reported_compute_units;
        return is_integrated ? profile->compute_units_integrated : profile->compute_units;
    }
};

struct PhysicalDevice {
    VkPhysicalDevice handle = VK_NULL_HANDLE;
    DeviceInfo info;
    std::string unsuitable;  // empty, or a sentence: which required feature it lacks
};

// Owner: runtime::device, once a process. Construction throws Error with a sentence when there is no loader
// or no driver.
class Instance {
  public:
    Instance();
    ~Instance();
    Instance(const Instance&) = delete;
    Instance& operator=(const Instance&) = delete;

    VkInstance handle() const { return handle_; }
    const std::vector<PhysicalDevice>& physical_devices() const { return physical_devices_; }
    std::vector<PhysicalDevice>& physical_devices() {
        return physical_devices_;
    }  // until a device is created

    // Debug names are set only where VK_EXT_debug_utils is present (validation, profilers).
    bool debug_utils() const { return debug_utils_; }

  private:
    VkInstance handle_ = VK_NULL_HANDLE;
    bool debug_utils_ = false;
    std::vector<PhysicalDevice> physical_devices_;
};

// The suitable devices of the best kind there is (discrete, integrated, virtual, then software), as indices.
std::vector<int> best_devices(const std::vector<PhysicalDevice>& devices);

// Chooses among suitable devices. selection: empty for the best one (discrete, integrated, virtual, then
// software), a decimal index into `devices`, or a part of a device's name in any case. Returns its index, or
// -1.
int choose_device(const std::vector<PhysicalDevice>& devices, const std::string& selection);

// "1.3.302" of a packed version number.
std::string version_string(uint32_t version);

}  // namespace anymps::vulkan
