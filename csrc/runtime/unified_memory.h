// Memory of the device that tensors of the CPU own.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

namespace anymps::runtime {

// Allocates for tensors of the CPU: memory of the device where the host can address it, so that an operator's
// result needs no copy to become an mps tensor; the host's own elsewhere. Each allocation waits for the
// device, which may still use the block for what was there before.
c10::Allocator* unified_allocator();

// A pointer to memory of `owner`, which it keeps alive.
c10::DataPtr pointer_into(void* memory, const c10::Storage& owner, c10::Device device);

// The memory of a storage of the CPU that unified_allocator() filled, for a storage of mps; it keeps the
// former alive. A null pointer for memory of other origin.
c10::DataPtr device_memory_of(const c10::Storage& cpu);

}  // namespace anymps::runtime
