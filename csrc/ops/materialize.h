// Memory of their own for copy-on-write storages that an operator writes.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace anymps::ops {

// Gives a copy-on-write storage memory of its own. Generated registrations call it for every argument that
// the schema says is written, before its address is taken: kernels::address() is for reading and does not.
inline void materialize(const at::TensorBase& written) {
    if (!written.defined()) return;
    if (const at::Storage& storage = written.unsafeGetTensorImpl()->unsafe_storage())
        storage.unsafeGetStorageImpl()->mutable_data_ptr();
}
inline void materialize(const std::optional<at::Tensor>& written) {
    if (written) materialize(*written);
}
inline void materialize(at::TensorList written) {
    for (const at::Tensor& one : written) materialize(one);
}

}  // namespace anymps::ops
