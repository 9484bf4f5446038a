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

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kernels/kernel_call.h"

namespace anymps::kernels {

enum class Arguments {
    kPushed,     // push constants, at most 128 bytes
    kByPointer,  // the kernel's only parameter is the address of its arguments
};

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
struct Kernel {
    using Args = Args_;
    using Constants = Constants_;
    using Call = TypedCall<Args, kArguments>;

    std::string_view name;

    Call call(const Constants& constants = {}) const { return {kernel_id(name), constants.values()}; }
};

// Kernels that differ in pieces of their names, e.g. "scan_rows" or "scan_columns", then "_f32" or "_i64".
// The table is made when the program is compiled, and an unknown piece, one that no kernel has, is an error
// then.
template <class Kernel, size_t... kCounts>
class KernelFamily {
  public:
    using Call = typename Kernel::Call;

    // all: shaders::NAME::kernels_with<Args>; pieces: what the first, second, ... part of a name can be.
    template <size_t kAll>
    consteval KernelFamily(const std::array<Kernel, kAll>& all, const char* const (&... pieces)[kCounts])
        : all_(all.data()) {
        constexpr size_t kParts = sizeof...(kCounts);
        const std::array<const char* const*, kParts> lists{pieces...};
        constexpr std::array<size_t, kParts> counts{kCounts...};
        std::array<std::array<bool, std::max({kCounts...})>, kParts> used{};
        for (size_t at = 0; at < table_.size(); ++at) {
            std::array<size_t, kParts> chosen{};
            for (size_t part = kParts, rest = at; part-- > 0; rest /= counts[part])
                chosen[part] = rest % counts[part];
            table_[at] = kNone;
            for (size_t k = 0; k < kAll; ++k) {
                std::string_view name = all[k].name;
                bool same = true;
                for (size_t part = 0; part < kParts; ++part) {
                    const std::string_view piece = lists[part][chosen[part]];
                    same = same && name.starts_with(piece);
                    if (same) name.remove_prefix(piece.size());
                }
                if (!same || !name.empty()) continue;
                table_[at] = k;
                for (size_t part = 0; part < kParts; ++part) used[part][chosen[part]] = true;
            }
        }
        for (size_t part = 0; part < kParts; ++part)
            for (size_t i = 0; i < counts[part]; ++i)
                if (!used[part][i]) throw std::invalid_argument("no kernel's name has this piece");
    }

    // By the numbers of the pieces. Raises an internal error where the shader has no such kernel.
    const Kernel& operator()(decltype(kCounts)... pieces) const {
        size_t at = 0;
        ((at = at * kCounts + pieces), ...);
        TORCH_INTERNAL_ASSERT(((pieces < kCounts) && ...) && table_[at] != kNone, "the family of ",
                              all_[0].name, " has no kernel number ", at);
        return all_[table_[at]];
    }

  private:
    static constexpr size_t kNone = SIZE_MAX;

    const Kernel* all_;
    std::array<size_t, (kCounts * ...)> table_{};
};

}  // namespace anymps::kernels
