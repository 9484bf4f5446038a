// Memory of an AOTInductor model's constants: the four functions of PyTorch's shim_mps.h that models call,
// which PyTorch's own build has for Macs only. Models do not look at their status, so these throw: a model's
// functions pass exceptions on to who has called them.
#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>
#include <torch/csrc/inductor/aoti_torch/c/shim_mps.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "runtime/address_map.h"
#include "runtime/allocator.h"
#include "runtime/command_encoder.h"
#include "vulkan/buffer.h"

using namespace anymps;

namespace {

struct Memory {
    c10::DataPtr pointer;
    size_t bytes;
};

struct Buffers {
    std::mutex mutex;
    std::map<uint64_t, Memory> by_address;
};

// Never destroyed: models may be freed as late as the process ends.
Buffers& buffers() {
    static Buffers& instance = *new Buffers;
    return instance;
}

uint64_t address_of(const void* pointer) {
    return reinterpret_cast<uint64_t>(pointer);
}

// Bytes from an address to the end of the model's memory that it lies in; 0 for other addresses.
uint64_t bytes_behind(uint64_t address) {
    Buffers& all = buffers();
    const std::lock_guard lock(all.mutex);
    auto found = all.by_address.upper_bound(address);
    if (found == all.by_address.begin()) return 0;
    --found;
    const uint64_t end = found->first + found->second.bytes;
    return address < end ? end - address : 0;
}

}  // namespace

AOTITorchError aoti_torch_mps_malloc(void** buffer, size_t num_bytes) {
    c10::DataPtr pointer = runtime::allocator().allocate(num_bytes);
    *buffer = pointer.mutable_get();
    if (*buffer) {
        Buffers& all = buffers();
        const std::lock_guard lock(all.mutex);
        all.by_address.emplace(address_of(*buffer), Memory{std::move(pointer), num_bytes});
    }
    return AOTI_TORCH_SUCCESS;
}

AOTITorchError aoti_torch_mps_free(void* ptr) {
    Buffers& all = buffers();
    std::unique_lock lock(all.mutex);
    const auto freed = all.by_address.extract(address_of(ptr));
    lock.unlock();  // before the memory goes back
    return AOTI_TORCH_SUCCESS;
}

// constants_start: host memory, of which `data_size` bytes begin at `bytes_read`.
AOTITorchError aoti_torch_mps_memcpy(void* buffer, size_t constant_offset, size_t bytes_read,
                                     size_t data_size, uint8_t* constants_start) {
    runtime::encoder().upload(address_of(buffer) + constant_offset, constants_start + bytes_read, data_size);
    return AOTI_TORCH_SUCCESS;
}

// src_buffer: a tensor's first element, and data_size the bytes of its whole storage, which may begin before
// it. What lies behind the storage's end is then read too, and lands behind the constant's elements.
AOTITorchError aoti_torch_mps_copy_buffer(void* src_buffer, void* dst_buffer, size_t data_size,
                                          size_t /*src_offset*/, size_t dst_offset) {
    const uint64_t source = address_of(src_buffer), target = address_of(dst_buffer) + dst_offset;
    const auto memory = runtime::share_buffer(source);
    TORCH_CHECK(memory, "A constant of a model on mps can be set to a tensor on mps only.");
    const uint64_t readable = memory->address() + memory->bytes() - source;
    runtime::encoder().copy(target, source, std::min({data_size, readable, bytes_behind(target)}));
    return AOTI_TORCH_SUCCESS;
}
