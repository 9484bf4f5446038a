#include "vulkan/spirv.h"

#include <algorithm>

namespace anymps::vulkan {

std::vector<uint32_t> without_float_controls(std::span<const uint32_t> spirv) {
    // Numbers of the SPIR-V specification: OpExecutionMode and OpCapability with SignedZeroInfNanPreserve.
    constexpr uint32_t kHeaderWords = 5, kOpExecutionMode = 16, kOpCapability = 17;
    constexpr uint32_t kMode = 4461, kCapability = 4466;
    const size_t header = std::min<size_t>(kHeaderWords, spirv.size());
    std::vector<uint32_t> out(spirv.begin(), spirv.begin() + header);
    for (size_t at = header; at < spirv.size();) {
        const uint32_t opcode = spirv[at] & 0xffffu;
        const size_t words = std::clamp<size_t>(spirv[at] >> 16, 1, spirv.size() - at);
        const bool mode = opcode == kOpExecutionMode && words > 2 && spirv[at + 2] == kMode;
        const bool capability = opcode == kOpCapability && words > 1 && spirv[at + 1] == kCapability;
        if (!mode && !capability) out.insert(out.end(), spirv.begin() + at, spirv.begin() + at + words);
        at += words;
    }
    return out;
}

}  // namespace anymps::vulkan
