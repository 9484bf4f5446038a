#include "kernels/kernel_call.h"

#include "runtime/zeroed_words.h"

namespace anymps::kernels {

uint64_t address_of_nothing() {
    static const auto& zeros = runtime::ZeroedWords::leaked(runtime::ZeroedWords::kMaxSlots);
    return zeros.address();
}

KernelCall& KernelCall::access(const at::TensorBase& tensor, bool write) {
    if (tensor.defined() && tensor.has_storage()) {
        const auto& storage = tensor.storage();
        if (storage.nbytes() > 0) {
            TORCH_INTERNAL_ASSERT(!write || !storage.unsafeGetStorageImpl()->has_materializer(),
                                  "a kernel would write into a copy-on-write storage");
            accesses_.push_back({reinterpret_cast<uint64_t>(storage.data()), storage.nbytes(), write});
        }
    }
    return *this;
}

}  // namespace anymps::kernels
