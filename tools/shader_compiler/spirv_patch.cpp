#include "spirv_patch.h"

#include <stdexcept>

namespace anymps::shader_compiler {

namespace {

// Numbers of the SPIR-V specification, sections 3.52 (instructions) and 3.20 (decorations).
constexpr uint32_t kHeaderWords = 5;
constexpr uint32_t kOpSourceContinued = 2, kOpSource = 3, kOpSourceExtension = 4, kOpName = 5,
                   kOpMemberName = 6, kOpString = 7, kOpLine = 8, kOpDecorate = 71, kOpNoLine = 317,
                   kOpModuleProcessed = 330;
constexpr uint32_t kDecorationDescriptorSet = 34;

bool is_debug(uint32_t opcode) {
    switch (opcode) {
        case kOpSourceContinued:
        case kOpSource:
        case kOpSourceExtension:
        case kOpName:
        case kOpMemberName:
        case kOpString:
        case kOpLine:
        case kOpNoLine:
        case kOpModuleProcessed:
            return true;
        default:
            return false;
    }
}

}  // namespace

std::vector<uint32_t> patch_spirv(std::span<const uint32_t> words) {
    if (words.size() < kHeaderWords)
        throw std::runtime_error("The SPIR-V module is shorter than its header.");
    std::vector<uint32_t> out(words.begin(), words.begin() + kHeaderWords);
    for (size_t at = kHeaderWords; at < words.size();) {
        const uint32_t opcode = words[at] & 0xffffu;
        const uint32_t count = words[at] >> 16;
        if (count == 0 || at + count > words.size())
            throw std::runtime_error("The SPIR-V module is damaged.");
        if (opcode == kOpDecorate && words[at + 2] == kDecorationDescriptorSet) {
            throw std::runtime_error(
                "the kernel uses a descriptor; arguments are uniform parameters of the entry "
                "point, and memory is reached by address.");
        }
        if (!is_debug(opcode)) out.insert(out.end(), words.begin() + at, words.begin() + at + count);
        at += count;
    }
    return out;
}

}  // namespace anymps::shader_compiler
