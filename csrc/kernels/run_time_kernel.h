// Kernels whose Slang source is written while the process runs: torch.compile's.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/core/TensorImpl.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/hazards.h"
#include "vulkan/pipeline.h"

namespace anymps::kernels {

// Opens the Slang library for this process: the path of libslang-compiler.so, and folders that sources import
// from. Returns Slang's version. The same arguments again do nothing; others raise RuntimeError, as does a
// file that cannot be opened, in one sentence.
std::string open_slang(const std::string& library, std::span<const std::string> folders);

// Begins to compile a source in another thread (ANYMPS_COMPILE_THREADS of them at most); returns at once.
void compile_slang_later(const std::string& source);

// Opens Slang in another thread and reads what a source imports; returns at once.
void prepare_slang(const std::string& source);

// The SPIR-V words of its entry point `main_kernel`; waits for them. Raises RuntimeError with the compiler's
// diagnostics and the numbered source. The words live as long as the process.
std::span<const uint32_t> compile_slang(const std::string& source);

// The same for all entry points of a source, packed (compiler/entry_points.h).
std::span<const uint32_t> compile_slang_all(const std::string& source);

// Kernels that Slang itself, and no cache, has compiled in this process.
uint64_t slang_compilations();

// The pipeline of a source for these specialization constants ([0] is the workgroup size, [1] the subgroup
// size, asked for where it is not 0); waits for Slang, and has the driver compile in another thread. The same
// arguments give the same pipeline, which lives as long as the process.
const vulkan::Pipeline& run_time_kernel(const std::string& name, const std::string& source,
                                        std::span<const uint32_t> specialization);

// The same for SPIR-V that there is already; nothing is kept of the words.
const vulkan::Pipeline& run_time_kernel(const std::string& name, std::span<const uint32_t> words,
                                        std::span<const uint32_t> specialization);

}  // namespace anymps::kernels

// Records one dispatch of a kernel (the address of its pipeline) over at least `groups` workgroups, numbered
// as x + y * (count of x); nothing for 0. args: pushed when they are at most 128 bytes; longer ones are
// copied and the kernel is pushed their address (`uniform Args* args`). They begin with `count` tensors'
// addresses of 8 bytes; accesses[i] is the memory of tensor i, of 0 bytes where it has none. Throws
// std::exception.
extern "C" void anymps_launch_kernel(void* pipeline, const void* args, size_t bytes, uint64_t groups,
                                     const anymps::runtime::Access* accesses, size_t count);

// torch.empty_strided on mps without the dispatcher. The caller owns the result. Throws std::exception.
extern "C" c10::TensorImpl* anymps_empty_strided(const int64_t* sizes, const int64_t* strides, size_t dims,
                                                 c10::ScalarType dtype);
