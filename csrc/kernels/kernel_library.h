// All kernels of the package: the compressed archive beside the shared library, and one getter for pipelines.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vulkan/pipeline.h"

namespace anymps::kernels {

// Index of a kernel in the archive; stable for the life of the process.
using KernelId = uint32_t;

// The id of a kernel by its name (one hash lookup). Throws an internal error naming the kernel when it is
// unknown.
KernelId kernel_id(std::string_view name);

// The pipeline of a kernel for these specialization constants (ids 0, 1, 2...: 0 is the workgroup size, 1 the
// subgroup size). The first use begins to compile it in another thread; it stays for the life of the device,
// and on disk. Thread-safe.
const vulkan::Pipeline& pipeline(KernelId id, std::span<const uint32_t> specialization);

// Names of all kernels in the archive, in id order.
std::vector<std::string> kernel_names();

// The SPIR-V words of a kernel (for tests and tools).
std::span<const uint32_t> kernel_spirv(KernelId id);

}  // namespace anymps::kernels
