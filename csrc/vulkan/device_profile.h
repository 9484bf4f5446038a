// What planners may ask of a family of GPUs: a row of the table in device_profile.cpp, found by a device's
// properties. Vendors, measured rates and what a family's compiler cannot take are stated there alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace anymps::vulkan {

struct DeviceInfo;

// Kernels that a family takes otherwise than all others. kernels: a name in which * stands for any
// characters.
struct Exclusion {
    const char* kernels;
    const char* reason;
};

// The device as a whole; `python -m torch_anymps.tune --device` measures them. 0: unknown.
struct DeviceRates {
    double launch = 0;       // seconds between two kernels of which one reads what the other writes
    double bytes = 0;        // bytes/s of device memory, read and written
    double simt_f32 = 0;     // FLOP/s of products on f32 FMA
    double matrix_f16 = 0;   // FLOP/s on f16 matrix units
    double matrix_bf16 = 0;  // FLOP/s on bf16 matrix units
    double units = 0;        // compute units of the device
};

// Seconds that a change of an algorithm gains or takes.
struct Tradeoff {
    double product;     // gained a multiply-add
    double element;     // of a pass before, an element
    double dispatches;  // of that pass
};

// Cost model of GEMMs and convolutions, as measured on the device of `reference`. Others' rates scale it.
struct PlanCosts {
    DeviceRates reference;
    double unit;  // seconds of a tile's cost_per_k of 1

    // Split-K, in units.
    uint64_t prologue_k;         // start-up and epilogue of a workgroup, in k
    uint64_t reduce;             // reduction dispatch
    uint64_t min_k_per_split;    // shortest slice worth a workgroup,
    uint64_t min_k_idle_unit;    // and where most compute units would be idle
    uint64_t max_split_k;        //
    uint64_t max_split_k_wgrad;  // of weight gradients: few results, long sums
    uint64_t results_per_unit;   // workspace elements written and read again
    uint64_t pack;               // packing dispatch
    uint64_t packed_per_unit;    // elements packed

    Tradeoff scaled_f16;          // f32 products as scaled f16
    Tradeoff aligned_copy;        // 16-bit products on a copy whose rows are aligned
    Tradeoff conv_scaled_f16;     // f32 convolutions of several taps as scaled f16, after an amax
    double conv_scaled_f16_1x1;   // gained a multiply-add of convolutions of one tap
    double bf16x2_max_intensity;  // products an element, up to which bf16x2 without a pass before is faster
    double wgrad_max_intensity;   // of weight gradients: up to which kernels without shared memory are faster
    double wgrad_max_intensity_pass;  // the same where the others need a pass before
    int64_t
        fused_amax_max_rows;  // of filters: with more, a kernel that takes the amax too reads x more often
    int64_t fused_amax_min_channels;
    uint64_t amax_sample_groups;  // workgroups of a first look at the amax: as short as a kernel can be
};

// How work is shared among threads where products are not concerned: rows and columns that are reduced or
// normalized, rows that indices name.
struct RowCosts {
    uint64_t target_groups = 1024;  // workgroups that fill the device
    uint64_t min_chunk = 8192;    // elements that a workgroup should see before a reduction is split further
    uint32_t prefetch_loads = 4;  // that a thread of a reduction issues before it uses the first
    uint64_t many_rows = 4096;    // from here on a row is worth no workgroup,
    uint64_t very_many_rows = 16384;          // and from here on few lanes of a subgroup
    uint64_t small_inner_min_rows = 16384;    // of reduce_small_inner
    uint64_t norm_gradients_min_rows = 1024;  // of the kernel that has all gradients of layer norm at once
    uint64_t softmax_long_row = 2048;         // elements up to which a workgroup keeps any row in registers,
    uint64_t softmax_long_vectors = 8192;     // and one that consists of vectors of four
    // Elements of rows added by index from which sorting them is quicker than atomics: those of the device,
    // and those by exchange.
    int64_t sorted_rows_atomic = 1 << 23;
    int64_t sorted_rows_exchange = 1 << 20;
};

// Assumed of a slow device of a family, for the longest that a dispatch may take.
struct SlowRates {
    double bytes, operations;  // a second
};

enum class Rate : uint32_t { SimtF32, MatrixF16, MatrixBf16 };

// Which devices a row is for: all of it must be true.
struct ProfileMatch {
    bool software = false;           // DeviceInfo::is_software
    uint32_t vendor_id = 0;          // VkPhysicalDeviceProperties::vendorID; 0: any
    bool matrix = false;             // has f16 matrix units
    bool matrix_bf16 = false;        // has bf16 matrix units
    bool discrete = false;           // is no integrated GPU
    uint32_t min_subgroup_size = 0;  // at least
    std::string_view names[4] = {};  // one of them is a part of the device's name, unless all are empty
};

struct DeviceProfile {
    const char* name;
    ProfileMatch match;
    // Where the driver does not tell: a guess of the size of such GPUs.
    uint32_t compute_units = 32, compute_units_integrated = 8;
    uint32_t subgroup_size =
        0;  // that kernels in subgroups ask for where there is a choice; 0: the driver's own
    uint32_t registers = 64;     // 32-bit registers of a thread, at most
    bool watchdog = true;        // the kernel driver resets the device after a dispatch of seconds
    uint32_t row_threads = 512;  // threads that may keep a row in registers without spilling them
    const PlanCosts* costs;
    RowCosts rows = {};
    DeviceRates rates;
    // As of a Radeon RX 6400, and as of a UHD 620 where memory is the system's.
    SlowRates slow = {.bytes = 100e9, .operations = 2e12};
    SlowRates slow_integrated = {.bytes = 25e9, .operations = 400e9};
    std::span<const Exclusion> excluded = {};
    std::span<const Exclusion> narrow = {};  // kernels that ask for the fewest lanes, where there is a choice

    // Whether NAME_lean is taken of kernels that come so, too: with fewer registers.
    bool lean() const { return registers <= 128; }

    // True where a kernel of this name is left out.
    bool excludes(std::string_view kernel) const;
    bool is_narrow(std::string_view kernel) const;

    // Times of this device over those of the costs' reference; exactly 1 for a row that has its rates, or
    // where a rate is unknown. Of products by the whole device, by a compute unit; of bytes; of launches.
    double product_scale(Rate rate) const;
    double unit_scale(Rate rate) const;
    double bytes_scale() const;
    double launch_scale() const;
};

// All rows, in the order in which they are tried; the last one is for every device.
std::span<const DeviceProfile> device_profiles();

// The first row that matches.
const DeviceProfile& find_profile(const DeviceInfo& info);

// The row of a device with rates that were measured on it.
DeviceProfile with_rates(const DeviceProfile& profile, const DeviceRates& rates);

// Rates as words "launch=2.1e-06 bytes=3.9e+12 ...", in any order. False where a word is none of them or a
// number is negative or no number; `rates` is then unchanged.
bool parse_rates(const std::string& text, DeviceRates& rates);

std::string rates_text(const DeviceRates& rates);

// A row for the table, as C++ text, of a device whose profile has measured rates.
std::string row_text(const DeviceInfo& info);

}  // namespace anymps::vulkan
