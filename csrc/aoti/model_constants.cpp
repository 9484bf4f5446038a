// Memory of an AOTInductor model's constants: the four functions of PyTorch's shim_mps.h that models call,
// which PyTorch's own build has for Macs only. Models do not look at their status, so these throw: a model's
// functions pass exceptions on to who has called them.
#include <c10/core/Allocator.h>
#include <torch/csrc/inductor/aoti_torch/c/shim_mps.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "runtime/allocator.h"
#include "runtime/command_encoder.h"

namespace {

struct Buffers {
    std::mutex mutex;
    std::map<void*, c10::DataPtr> by_address;
};

// Never destroyed: models may be freed as late as the process ends.
Buffers& buffers() {
    static Buffers& instance = *new Buffers;
    return instance;
}

}  // namespace

AOTITorchError aoti_torch_mps_malloc(void** buffer, size_t num_bytes) {
    c10::DataPtr memory = anymps::runtime::allocator().allocate(num_bytes);
    *buffer = memory.mutable_get();
    if (*buffer) {
        Buffers& all = buffers();
        const std::lock_guard lock(all.mutex);
        all.by_address.emplace(*buffer, std::move(memory));
    }
    return AOTI_TORCH_SUCCESS;
}

AOTITorchError aoti_torch_mps_free(void* ptr) {
    c10::DataPtr memory;  // freed after the lock is
    Buffers& all = buffers();
    const std::lock_guard lock(all.mutex);
    if (const auto found = all.by_address.find(ptr); found != all.by_address.end()) {
        memory = std::move(found->second);
        all.by_address.erase(found);
    }
    return AOTI_TORCH_SUCCESS;
}

// constants_start: host memory, of which `data_size` bytes begin at `bytes_read`.
AOTITorchError aoti_torch_mps_memcpy(void* buffer, size_t constant_offset, size_t bytes_read,
                                     size_t data_size, uint8_t* constants_start) {
    anymps::runtime::encoder().upload(reinterpret_cast<uint64_t>(buffer) + constant_offset,
                                      constants_start + bytes_read, data_size);
    return AOTI_TORCH_SUCCESS;
}

// src_buffer: the address of a tensor's first element, of which src_offset is a part already.
AOTITorchError aoti_torch_mps_copy_buffer(void* src_buffer, void* dst_buffer, size_t data_size,
                                          size_t /*src_offset*/, size_t dst_offset) {
    anymps::runtime::encoder().copy(reinterpret_cast<uint64_t>(dst_buffer) + dst_offset,
                                    reinterpret_cast<uint64_t>(src_buffer), data_size);
    return AOTI_TORCH_SUCCESS;
}
