// What Slang's SPIR-V lacks or has too much of for the drivers and tools that we target.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace anymps::shader_compiler {

// Removes names, sources and line information: old validators refuse Slang's source language, and drivers
// never need them. Throws std::runtime_error with a sentence when the module uses a descriptor: memory is
// reached by address only.
std::vector<uint32_t> patch_spirv(std::span<const uint32_t> words);

// Marks the structs that pointers among the push constants lead to as memory that the kernel does not write:
// a kernel's arguments. Else a driver has to keep all of them in registers of every thread, since a store
// might change them; so it loads them once a workgroup, or where they are used.
std::vector<uint32_t> with_read_only_arguments(std::span<const uint32_t> words);

}  // namespace anymps::shader_compiler
