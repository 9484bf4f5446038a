// What C++ modules that Inductor writes for mps call to launch their kernels: AOTInductor's, and those of
// torch._inductor.config.cpp_wrapper. No interface for users: it changes as the generator does.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

extern "C" {

struct anymps_aoti_kernel;  // lives as long as the process

// A generated kernel, and what it counts on of the device. Nothing of it is kept but what is copied.
struct anymps_aoti_source {
    const char* name;       // in profiles
    const uint32_t* words;  // SPIR-V
    size_t word_count;
    const char* device;      // the one that it was generated for, for messages
    uint32_t workgroup;      // threads
    uint32_t subgroup;       // the same
    uint32_t software;       // 1: for a driver that runs on CPU cores
    uint32_t float_atomics;  // 1: the device adds to floats in memory by itself
    uint32_t tensors;        // arguments: tensors first, then numbers of 8 bytes
    uint32_t numbers;
    uint64_t written;      // bit i: tensor i is written
    const uint32_t* grid;  // indices of the numbers whose product is the count of rows
    uint32_t grid_count;
    int64_t rows_per_group;
    const char* const* messages;  // of errors that the kernel may report at the next synchronization
    uint32_t message_count;
};

// RuntimeError for a device that the kernel was not generated for.
AOTI_TORCH_EXPORT AOTITorchError anymps_aoti_create_kernel(const anymps_aoti_source* source,
                                                           anymps_aoti_kernel** kernel);

// Records one dispatch: numbers are int64, or float32 in the low half. RuntimeError for a tensor that is not
// on mps.
AOTI_TORCH_EXPORT AOTITorchError anymps_aoti_launch(const anymps_aoti_kernel* kernel,
                                                    const AtenTensorHandle* tensors, const uint64_t* numbers);

}  // extern "C"

namespace anymps::aoti {

// Numbers as anymps_aoti_launch takes them; fraction() rounds to float32.
inline uint64_t integer(int64_t value) {
    return static_cast<uint64_t>(value);
}

inline uint64_t fraction(double value) {
    const float narrow = static_cast<float>(value);
    uint32_t bits;
    std::memcpy(&bits, &narrow, sizeof(bits));
    return bits;
}

}  // namespace anymps::aoti
