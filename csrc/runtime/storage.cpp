// torch.UntypedStorage.resize_ on mps, which PyTorch's own refuses in builds without Apple's backend: sharded
// training frees and refills the memory of tensors that stay.
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>

#include "runtime/allocator.h"

namespace anymps::runtime {
namespace {

// Gives the storage of a tensor another size in bytes; what both sizes have in common is kept. 0 frees the
// memory: what was recorded before still reads it, as a freed block is handed out in the stream's order.
void resize_storage(const at::Tensor& tensor, int64_t bytes) {
    c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
    TORCH_CHECK(tensor.is_mps(), "resize_storage: expected a tensor on mps, but got one on ",
                tensor.device());
    TORCH_CHECK(bytes >= 0, "UntypedStorage.resize_: expected a size of 0 or more bytes, but got ", bytes);
    TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
    const auto wanted = static_cast<size_t>(bytes);
    if (storage.nbytes() == wanted) return;
    c10::DataPtr memory = allocator().allocate(wanted);
    if (const size_t kept = std::min(storage.nbytes(), wanted)) {
        allocator().copy_data(memory.get(), storage.data(), kept);
    }
    storage.set_data_ptr_noswap(std::move(memory));
    storage.set_nbytes(wanted);
}

TORCH_LIBRARY_FRAGMENT(anymps, m) {
    m.def("resize_storage(Tensor tensor, int bytes) -> ()", resize_storage);
}

}  // namespace
}  // namespace anymps::runtime
