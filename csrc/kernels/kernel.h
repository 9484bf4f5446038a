// Kernels as their shaders declare them. <anymps/shaders/FAMILY/NAME.h>, generated from the .slang file
// there, has a Kernel for each name, the structs of their arguments and the specialization constants by name:
//
//     namespace softmax = shaders::softmax_rows;
//     const softmax::SoftmaxRows args{.x = address(self), .y = address(out), .rows = rows, .size = size};
//     softmax::softmax_rows.call({.workgroup = workgroup, .lanes = lanes, .log = log})
//         .read(self)
//         .write(out)
//         .dispatch(args, grid);
//
// A constant that is not named keeps the shader's default.
#pragma once

#include "kernels/declared_kernel.h"

// Programs without PyTorch plan dispatches and do not call (tests/cpp/plans).
#if __has_include(<ATen/core/TensorBase.h>)

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "kernels/kernel_call.h"

namespace anymps::kernels {

// One dispatch of a kernel that takes Args.
template <class Args, Arguments kArguments>
class TypedCall : public KernelCall {
  public:
    using KernelCall::KernelCall;

    template <class... Memory>
    TypedCall& read(const Memory&... memory) {
        KernelCall::read(memory...);
        return *this;
    }
    template <class... Memory>
    TypedCall& write(const Memory&... memory) {
        KernelCall::write(memory...);
        return *this;
    }

    void dispatch(const Args& args, Grid grid) {
        if constexpr (kArguments == Arguments::kPushed)
            KernelCall::dispatch(args, grid);
        else
            dispatch_pointer(args, grid);
    }
    // grid: the address of three words of workgroup counts that an earlier kernel has written.
    void dispatch(const Args& args, uint64_t grid) {
        static_assert(kArguments == Arguments::kByPointer);
        dispatch_pointer(&args, sizeof(Args), grid);
    }
    // The first `bytes` of args, which ends with an array of any length and may lie in a larger buffer.
    void dispatch_prefix(const Args& args, size_t bytes, Grid grid) {
        static_assert(kArguments == Arguments::kByPointer);
        dispatch_pointer(&args, bytes, grid);
    }
    // args and, behind it, a table.
    template <class Entry>
    void dispatch_table(const Args& args, const std::vector<Entry>& table, Grid grid) {
        static_assert(kArguments == Arguments::kByPointer && std::is_trivially_copyable_v<Entry> &&
                      sizeof(Args) % alignof(Entry) == 0);
        std::vector<std::byte> whole(sizeof(Args) + table.size() * sizeof(Entry));
        std::memcpy(whole.data(), &args, sizeof(Args));
        if (!table.empty())
            std::memcpy(whole.data() + sizeof(Args), table.data(), table.size() * sizeof(Entry));
        dispatch_pointer(whole.data(), whole.size(), grid);
    }
};

template <class Args_, class Constants_, Arguments kArguments>
auto Kernel<Args_, Constants_, kArguments>::call(const Constants& constants) const -> Call {
    return {kernel_id(name), constants.values()};
}

}  // namespace anymps::kernels

#endif
