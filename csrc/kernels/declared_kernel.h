// Kernels by name, with the structs of their arguments and their specialization constants, without PyTorch:
// what plans are made of. kernels/kernel.h calls them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace anymps::kernels {

enum class Arguments {
    kPushed,     // push constants, at most 128 bytes
    kByPointer,  // the kernel's only parameter is the address of its arguments
};

template <class Args, Arguments kArguments>
class TypedCall;

template <class Args_, class Constants_, Arguments kArguments>
struct Kernel {
    using Args = Args_;
    using Constants = Constants_;
    using Call = TypedCall<Args, kArguments>;

    std::string_view name;

    Call call(const Constants& constants = {}) const;  // kernels/kernel.h
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

    // By the numbers of the pieces. Throws std::logic_error where the shader has no such kernel.
    const Kernel& operator()(decltype(kCounts)... pieces) const {
        size_t at = 0;
        ((at = at * kCounts + pieces), ...);
        if (!((pieces < kCounts) && ...) || table_[at] == kNone)
            throw std::logic_error("the family of " + std::string(all_[0].name) + " has no kernel number " +
                                   std::to_string(at));
        return all_[table_[at]];
    }

  private:
    static constexpr size_t kNone = SIZE_MAX;

    const Kernel* all_;
    std::array<size_t, (kCounts * ...)> table_{};
};

}  // namespace anymps::kernels
