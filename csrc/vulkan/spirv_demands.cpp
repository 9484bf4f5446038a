#include "vulkan/spirv_demands.h"

#include <unordered_map>

namespace anymps::vulkan {

namespace {

constexpr uint32_t kHeaderWords = 5;

// Calls visit(opcode, the instruction's words) in order; the module is known to be whole (module_for_device).
template <class Word, class Visit>
void for_each_instruction(std::span<Word> spirv, Visit visit) {
    for (size_t at = kHeaderWords; at < spirv.size() && (spirv[at] >> 16) != 0; at += spirv[at] >> 16) {
        visit(spirv[at] & 0xffffu, spirv.subspan(at, spirv[at] >> 16));
    }
}

}  // namespace

uint32_t shared_memory_of(std::span<const uint32_t> spirv, std::span<const uint32_t> specialization) {
    constexpr uint32_t kTypeInt = 21, kTypeFloat = 22, kTypeVector = 23, kTypeArray = 28, kTypeStruct = 30;
    constexpr uint32_t kTypePointer = 32, kConstant = 43, kSpecConstant = 50, kVariable = 59, kWorkgroup = 4;
    constexpr uint32_t kDecorate = 71, kSpecId = 1;
    std::unordered_map<uint32_t, uint32_t> bytes;  // by id; a pointer's are those of its target
    std::unordered_map<uint32_t, uint32_t> constants, specialized;
    uint32_t total = 0;
    for_each_instruction(spirv, [&](uint32_t opcode, std::span<const uint32_t> words) {
        switch (opcode) {
            case kTypeInt:
            case kTypeFloat:
                bytes[words[1]] = words[2] / 8;
                break;
            case kTypeVector:
                bytes[words[1]] = bytes[words[2]] * words[3];
                break;
            case kTypeArray:
                bytes[words[1]] = bytes[words[2]] * constants[words[3]];
                break;
            case kTypeStruct:
                for (const uint32_t member : words.subspan(2)) bytes[words[1]] += bytes[member];
                break;
            case kTypePointer:
                bytes[words[1]] = bytes[words[3]];
                break;
            case kDecorate:
                if (words[2] == kSpecId && words[3] < specialization.size()) {
                    specialized[words[1]] = specialization[words[3]];
                }
                break;
            case kConstant:
            case kSpecConstant: {
                const auto given = specialized.find(words[2]);
                constants[words[2]] = given == specialized.end() ? words[3] : given->second;
                break;
            }
            case kVariable:
                if (words[3] == kWorkgroup) total += bytes[words[1]];
                break;
        }
    });
    return total;
}

VkSubgroupFeatureFlags subgroup_features_of(std::span<const uint32_t> spirv) {
    // The capabilities GroupNonUniform, ...Vote, ...Arithmetic and so on are in the order of Vulkan's bits.
    constexpr uint32_t kCapability = 17, kGroupNonUniform = 61, kGroupNonUniformQuad = 68;
    VkSubgroupFeatureFlags features = 0;
    for_each_instruction(spirv, [&](uint32_t opcode, std::span<const uint32_t> words) {
        if (opcode != kCapability || words[1] < kGroupNonUniform || words[1] > kGroupNonUniformQuad) return;
        features |= VkSubgroupFeatureFlags{1} << (words[1] - kGroupNonUniform);
    });
    return features;
}

void keep_halves_in_memory(std::vector<uint32_t>& spirv) {
    constexpr uint32_t kCapability = 17, kFloat16 = 9, kStorageBuffer16BitAccess = 4433;
    for_each_instruction(std::span<uint32_t>(spirv), [](uint32_t opcode, std::span<uint32_t> words) {
        if (opcode == kCapability && words[1] == kFloat16) words[1] = kStorageBuffer16BitAccess;
    });
}

}  // namespace anymps::vulkan
