// One dispatch of a kernel, as ops write it: KernelCall(name, specialization).read(a).write(b).dispatch(args,
// grid).
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <type_traits>

#include "kernels/dtype.h"
#include "kernels/kernel_library.h"
#include "runtime/command_encoder.h"

namespace anymps::kernels {

using runtime::Grid;

// 64 KiB of zeros that stand for memory of tensors without elements: a kernel that reads such a tensor before
// it looks at its size does not lose the device.
uint64_t address_of_nothing();

// Device address of a tensor's first element (storage offset included).
inline uint64_t address(const at::TensorBase& tensor) {
    const auto address = reinterpret_cast<uint64_t>(tensor.const_data_ptr());
    return address != 0 ? address : address_of_nothing();
}
// 0 for an undefined tensor, or one without elements: kernels take it for none.
inline uint64_t address_or_0(const at::TensorBase& tensor) {
    return tensor.defined() ? reinterpret_cast<uint64_t>(tensor.const_data_ptr()) : 0;
}

class KernelCall {
  public:
    KernelCall(KernelId id, std::span<const uint32_t> specialization)
        : pipeline_(pipeline(id, specialization)) {}
    KernelCall(std::string_view name, std::initializer_list<uint32_t> specialization)
        : KernelCall(kernel_id(name), std::span(specialization.begin(), specialization.size())) {}

    // Names the storage of a tensor as read or written; undefined tensors are skipped.
    KernelCall& read(const at::TensorBase& tensor) { return access(tensor, false); }
    KernelCall& write(const at::TensorBase& tensor) { return access(tensor, true); }
    // A part of a storage, or other memory: what writes other parts need not wait for it.
    KernelCall& read(uint64_t address, uint64_t bytes) {
        accesses_.push_back({address, bytes, false});
        return *this;
    }
    KernelCall& write(uint64_t address, uint64_t bytes) {
        accesses_.push_back({address, bytes, true});
        return *this;
    }

    template <class Args>
    void dispatch(const Args& args, Grid grid) {
        static_assert(std::is_trivially_copyable_v<Args> && sizeof(Args) <= 128);
        runtime::encoder().dispatch(pipeline_, &args, sizeof(Args), grid, accesses_);
    }
    // For arguments over 128 bytes: the kernel's only uniform is `Args* args`.
    template <class Args>
    void dispatch_pointer(const Args& args, Grid grid) {
        static_assert(std::is_trivially_copyable_v<Args>);
        runtime::encoder().dispatch_pointer(pipeline_, &args, sizeof(Args), grid, accesses_);
    }
    void dispatch_pointer(const void* args, size_t bytes, Grid grid) {
        runtime::encoder().dispatch_pointer(pipeline_, args, bytes, grid, accesses_);
    }
    // grid: the address of three words of workgroup counts that an earlier kernel has written.
    void dispatch_pointer(const void* args, size_t bytes, uint64_t grid) {
        read(grid, 3 * sizeof(uint32_t));
        runtime::encoder().dispatch_pointer(pipeline_, args, bytes, grid, accesses_);
    }

  private:
    KernelCall& access(const at::TensorBase& tensor, bool write);

    const vulkan::Pipeline& pipeline_;
    c10::SmallVector<runtime::Access, 6> accesses_;
};

}  // namespace anymps::kernels
