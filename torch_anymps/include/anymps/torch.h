// <anymps/kernel.h> for C++ with PyTorch's tensors: nothing is linked, the table of functions comes through PyTorch's
// dispatcher.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <type_traits>

#include "anymps/kernel.h"

namespace anymps {

// Raises RuntimeError where torch-anymps is not loaded, or is older than this header.
inline const anymps_kernel_api& kernel_api() {
    static const anymps_kernel_api* const api = [] {
        const auto op = c10::Dispatcher::singleton().findSchema({"anymps::kernel_api", ""});
        TORCH_CHECK(op, "torch-anymps is not loaded: import torch_anymps says why.");
        const int64_t table = op->typed<int64_t()>().call();
        const auto* found = reinterpret_cast<const anymps_kernel_api*>(table);
        TORCH_CHECK(found->version >= ANYMPS_KERNEL_API_VERSION, "torch-anymps has version ", found->version,
                    " of its interface for kernels, and ", ANYMPS_KERNEL_API_VERSION, " is needed.");
        return found;
    }();
    return *api;
}

// Raises PyTorch's error for a status.
inline void check(anymps_status status) {
    if (status == ANYMPS_OK) return;
    const char* message = kernel_api().last_error();
    TORCH_CHECK_VALUE(status != ANYMPS_INVALID_VALUE, message);
    TORCH_CHECK_WITH(OutOfMemoryError, status != ANYMPS_OUT_OF_MEMORY, message);
    TORCH_CHECK(false, message);
}

// The storage of a tensor on mps as what a dispatch reads or writes, of any dtype and strides. Kernels get the address
// of its first element: tensor.const_data_ptr(), or tensor.mutable_data_ptr() of one that is written. Raises
// RuntimeError for a tensor of another device.
inline anymps_access access(const at::TensorBase& tensor, bool write) {
    TORCH_CHECK(tensor.is_mps(), "a kernel takes tensors on mps, and one is on ", tensor.device());
    const auto address = reinterpret_cast<uint64_t>(write ? tensor.storage().mutable_data() : tensor.storage().data());
    return {address, tensor.storage().nbytes(), write, 0};
}
inline anymps_access reads(const at::TensorBase& tensor) { return access(tensor, false); }
inline anymps_access writes(const at::TensorBase& tensor) { return access(tensor, true); }

// A kernel of one's own. It lives as long as the process, as do copies of this handle; make it once, say as a static.
class Kernel {
  public:
    // spirv, and subgroup_size in threads: see anymps_kernel_api::create. Raises ValueError for a module that is no
    // kernel, RuntimeError where there is no device.
    Kernel(const char* name, std::span<const uint32_t> spirv, uint32_t subgroup_size = 0) {
        check(kernel_api().create(name, spirv.data(), spirv.size(), subgroup_size, &kernel_));
    }

    // Records a dispatch of `groups` workgroups (at most 65,535 in a dimension) in the current stream. args: the
    // uniform parameters in their order, as Slang, HLSL and GLSL lay push constants out (std430). accesses: all memory
    // that the kernel reads or writes; what is missing there is not ordered against other kernels. Raises as check().
    template <class Args>
    void dispatch(std::array<uint32_t, 3> groups, const Args& args,
                  std::initializer_list<anymps_access> accesses) const {
        static_assert(std::is_trivially_copyable_v<Args>);
        check(kernel_api().dispatch(kernel_, groups.data(), nullptr, &args, sizeof(Args), accesses.begin(),
                                    accesses.size()));
    }

  private:
    anymps_kernel* kernel_ = nullptr;
};

}  // namespace anymps
