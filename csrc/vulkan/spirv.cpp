#include "vulkan/spirv.h"

#include "spirv/opcodes.h"
#include "vulkan/check.h"

namespace anymps::vulkan {

using spirv::kHeaderWords;

namespace {

// Numbers of the SPIR-V specification, sections 3.6 (execution modes), 3.31 (capabilities), 3.52.
constexpr uint32_t kOpExecutionMode = 16, kOpCapability = 17;
constexpr uint32_t kDontInline = 2;
constexpr uint32_t kDenormPreserveCapability = 4464, kSignedZeroInfNanPreserveCapability = 4466;
constexpr uint32_t kDenormPreserveMode = 4459, kSignedZeroInfNanPreserveMode = 4461;

constexpr uint32_t instruction(uint32_t opcode, uint32_t words) {
    return (words << 16) | opcode;
}

}  // namespace

std::vector<uint32_t> module_for_device(std::span<const uint32_t> spirv, FloatControls controls) {
    if (spirv.size() < kHeaderWords) {
        throw Error(VK_ERROR_UNKNOWN, "A SPIR-V module is shorter than its header.");
    }
    std::vector<uint32_t> out(spirv.begin(), spirv.begin() + kHeaderWords);
    out.reserve(spirv.size() + 16);
    std::vector<uint32_t> modes;
    const auto add = [&](bool wanted, uint32_t capability, uint32_t mode) {
        if (!wanted) return;
        out.insert(out.end(), {instruction(kOpCapability, 2), capability});
        modes.push_back(mode);
    };
    add(controls.preserve_nan, kSignedZeroInfNanPreserveCapability, kSignedZeroInfNanPreserveMode);
    add(controls.preserve_denormals, kDenormPreserveCapability, kDenormPreserveMode);

    // Execution modes follow the entry points.
    std::vector<uint32_t> entries;
    bool has_modes = false;
    const auto add_modes = [&] {
        for (const uint32_t entry : entries)
            for (const uint32_t mode : modes)
                out.insert(out.end(), {instruction(kOpExecutionMode, 4), entry, mode, 32});
        has_modes = true;
    };
    spirv::for_each_instruction(spirv.subspan(kHeaderWords), [&](spirv::Words words) {
        const auto op = spirv::opcode_of(words);
        if (op == spirv::Op::EntryPoint) {
            entries.push_back(words[2]);
        } else if (!entries.empty() && !has_modes) {
            add_modes();
        }
        const size_t at = out.size();
        out.insert(out.end(), words.begin(), words.end());
        // [noinline] keeps modules small. NVIDIA's compiler (580) obeys it with calls that are 4 times slower
        // and lose results of functions with array outputs; the others inline everything.
        if (op == spirv::Op::Function) out[at + 3] &= ~kDontInline;
    });
    if (!has_modes) add_modes();
    return out;
}

}  // namespace anymps::vulkan
