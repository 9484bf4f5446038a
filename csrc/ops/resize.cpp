// Tensors that change their storage: resize_ and set_.
#include <anymps/ops/resize_ops.h>

#include <ATen/Context.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/set_native.h>
#include <c10/core/Allocator.h>
#include <c10/util/accumulate.h>

#include "runtime/command_encoder.h"

namespace anymps::ops {
namespace {

// Grows a storage and keeps its bytes; never shrinks it.
void grow_storage(c10::TensorImpl& tensor, size_t bytes) {
    if (tensor.numel() == 0) return;
    const at::Storage& storage = tensor.unsafe_storage();
    TORCH_CHECK(storage, "Tensor: invalid null storage");
    const size_t old_bytes = storage.nbytes();
    if (bytes <= old_bytes) return;
    TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
    at::DataPtr data = c10::GetAllocator(at::kMPS)->allocate(bytes);
    if (old_bytes != 0) {
        runtime::encoder().copy(reinterpret_cast<uint64_t>(data.get()),
                                reinterpret_cast<uint64_t>(storage.data()), old_bytes);
    }
    storage.set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->clear_materializer();  // copy-on-write until now
    storage.set_nbytes(bytes);
}

void resize(c10::TensorImpl& tensor, IntArrayRef size, OptionalIntArrayRef stride) {
    if (tensor.sizes() == size && (!stride || tensor.strides() == *stride)) return;
    const size_t itemsize = tensor.dtype().itemsize();
    const size_t offset = tensor.storage_offset();
    size_t bytes;
    if (stride) {
        bytes = at::detail::computeStorageNbytes(size, *stride, itemsize, offset);
        tensor.set_sizes_and_strides(size, *stride);
    } else {
        bytes = at::detail::computeStorageNbytesContiguous(size, itemsize, offset);
        tensor.set_sizes_contiguous(size);
    }
    grow_storage(tensor, bytes);
}

}  // namespace

const Tensor& ANYMPS_FUNC(resize_)(const Tensor& self, IntArrayRef size,
                                   std::optional<MemoryFormat> memory_format) {
    auto& tensor = *self.unsafeGetTensorImpl();
    const auto old_bytes = static_cast<int64_t>(tensor.unsafe_storage().nbytes());
    at::detail::check_size_nonnegative(size);
    resize(tensor, size, std::nullopt);
    if (memory_format) {
        TORCH_CHECK(*memory_format != MemoryFormat::Preserve, "Unsupported memory format", *memory_format);
        tensor.empty_tensor_restride(*memory_format);
    }
    const auto& context = at::globalContext();
    if (context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory()) [[unlikely]] {
        at::native::fill_resize_deterministic_(self, old_bytes);
    }
    return self;
}

ANYMPS_ROW(set__source_Storage, at::native::set_(self, std::move(source)))

Tensor& ANYMPS_FUNC(set__source_Storage_storage_offset)(Tensor& self, at::Storage source,
                                                        int64_t storage_offset, IntArrayRef size,
                                                        IntArrayRef stride) {
    at::native::checkSetStorage(self, std::move(source), storage_offset, size, stride);
    auto& tensor = *self.unsafeGetTensorImpl();
    tensor.set_storage_offset(storage_offset);
    resize(tensor, size, stride.data() != nullptr ? OptionalIntArrayRef(stride) : std::nullopt);
    return self;
}

ANYMPS_ROW(set__source_Tensor, at::native::set_tensor_(self, source))

Tensor& ANYMPS_FUNC(set_)(Tensor& self) {
    at::Storage nothing(at::Storage::use_byte_size_t(), 0, c10::GetAllocator(at::kMPS), /*resizable=*/true);
    return set__source_Storage_storage_offset(self, std::move(nothing), 0, {0}, {});
}

ANYMPS_ROW(is_set_to, at::native::is_set_to(self, tensor))

}  // namespace anymps::ops
