// Rates that `python -m torch_anymps.tune --device` has measured: a file of the cache folder, in force for
// the device and driver that its first line names.
#pragma once

#include <string>

#include "vulkan/instance.h"

namespace anymps::runtime {

// rates.txt in the cache folder, which `python -m torch_anymps.tune --device` writes.
std::string device_rates_path();

// First line of a file of what was measured on a device with this driver. what: of which kind and form,
// "tiles 1".
std::string measured_header(const vulkan::DeviceInfo& info, const std::string& what);

// Gives a device the profile with its measured rates, if the file has them. A file of another device or
// driver says nothing; one that is no such file is ignored with a warning.
void load_device_rates(vulkan::DeviceInfo& info);

}  // namespace anymps::runtime
