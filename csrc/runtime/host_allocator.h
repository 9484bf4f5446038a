// Memory of the host that tensors call pinned. Transfers go through staging memory of our own, so it is the
// CPU's like any other; but what was asked to be pinned says so, since FSDP pins again, and loses the old
// memory, what does not.
#pragma once

#include <c10/core/Allocator.h>

namespace anymps::runtime {

// Thread-safe, as is is_pinned(): whether an address lies in a block of this allocator.
c10::Allocator* pinned_allocator();
bool is_pinned(const void* data);

}  // namespace anymps::runtime
