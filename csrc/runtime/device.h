// The process's one mps device: found at the first question, created at the first use, never destroyed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "vulkan/device.h"

namespace anymps::runtime {

// True when a suitable device exists (creates the Vulkan instance, not the device). False in a forked child
// of a process that had used the device.
bool device_available() noexcept;

// Why device_available() is false, and what to do, in a sentence; empty when it is true.
std::string unavailable_reason();

// The device that was chosen: by set_device(); by the environment variable ANYMPS_DEVICE, an index or a part
// of a name; else the best one, of several equally good ones number LOCAL_RANK modulo their count. Creates it
// at the first call. Raises RuntimeError when there is none, or in a forked child.
const vulkan::Device& device();

// A line for every Vulkan device, in the order of ANYMPS_DEVICE's indices: its name, and "chosen", or what it
// lacks.
std::vector<std::string> device_list();

// Properties of the chosen device without creating it; raises as device() does.
const vulkan::DeviceInfo& device_info();

// How many equally good devices there are: the processes of one machine are spread over them.
int device_count();

// Has this process use number `index` of them. Raises RuntimeError for an index that is none, and once
// another device is in use.
void set_device(int64_t index);

// Whether mps:index means the device of this process: 0 does, and so does the number that a launcher
// (LOCAL_RANK) or set_device() gave it, by which libraries written for several devices a process ask for it.
bool is_own_index(int64_t index);

// True once device() has created the device.
bool device_created() noexcept;

// Raises RuntimeError in a forked child whose parent had used the device, as CUDA does.
void check_not_forked();
bool in_bad_fork() noexcept;

// Folder for pipelines on disk: ANYMPS_CACHE_DIR, else XDG_CACHE_HOME/torch_anymps, else
// ~/.cache/torch_anymps.
std::string cache_folder();

}  // namespace anymps::runtime
