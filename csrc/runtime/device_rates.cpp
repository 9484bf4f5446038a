#include "runtime/device_rates.h"

#include <c10/util/Exception.h>
#include <torch/library.h>

#include <fstream>
#include <vector>

#include "runtime/device.h"

namespace anymps::runtime {
namespace {

constexpr const char* kForm = "rates 1";

TORCH_LIBRARY_FRAGMENT(anymps, m) {
    // Path and first line of the file.
    m.def("device_rates_file() -> str[]", [] {
        return std::vector<std::string>{device_rates_path(), measured_header(device_info(), kForm)};
    });
    // The row that csrc/vulkan/device_profile.cpp would have for this device with these rates. Raises
    // ValueError for other words.
    m.def("device_row(str rates) -> str", [](const std::string& text) {
        vulkan::DeviceRates rates;
        TORCH_CHECK_VALUE(vulkan::parse_rates(text, rates), "device_row: expected rates as name=number, got ",
                          text);
        vulkan::DeviceInfo info = device_info();
        const vulkan::DeviceProfile profile = with_rates(*info.profile, rates);
        info.profile = &profile;
        return row_text(info);
    });
}

}  // namespace

std::string device_rates_path() {
    return cache_folder() + "/rates.txt";
}

std::string measured_header(const vulkan::DeviceInfo& info, const std::string& what) {
    return "torch-anymps " + what + "; " + info.name + "; " + info.driver_name + " " + info.driver_info;
}

void load_device_rates(vulkan::DeviceInfo& info) {
    std::ifstream file(device_rates_path());
    std::string header, line;
    if (!file || !std::getline(file, header)) return;
    if (header != measured_header(info, kForm) && header.starts_with("torch-anymps rates ")) return;
    vulkan::DeviceRates rates;
    if (header != measured_header(info, kForm) || !std::getline(file, line) || !parse_rates(line, rates)) {
        TORCH_WARN_ONCE("torch-anymps ignores ", device_rates_path(),
                        ", which is not a file of measured rates. Delete it, or write it anew by: "
                        "python -m torch_anymps.tune --device");
        return;
    }
    info.profile = new vulkan::DeviceProfile(with_rates(*info.profile, rates));  // as long as the device
}

}  // namespace anymps::runtime
