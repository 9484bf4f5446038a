#include "kernels/kernel_call.h"

namespace anymps::kernels {

KernelCall& KernelCall::access(const at::TensorBase& tensor, bool write) {
    if (tensor.defined() && tensor.has_storage()) {
        const auto& storage = tensor.storage();
        if (storage.nbytes() > 0) {
            accesses_.push_back({reinterpret_cast<uint64_t>(storage.data()), storage.nbytes(), write});
        }
    }
    return *this;
}

}  // namespace anymps::kernels
