#include "vulkan/spirv_demands.h"

#include <unordered_map>

#include "vulkan/spirv_opcodes.h"

namespace anymps::vulkan {

uint32_t shared_memory_of(std::span<const uint32_t> spirv, std::span<const uint32_t> specialization) {
    constexpr uint32_t kWorkgroup = 4, kSpecId = 1;
    std::unordered_map<uint32_t, uint32_t> bytes;  // by id; a pointer's are those of its target
    std::unordered_map<uint32_t, uint32_t> constants, specialized;
    uint32_t total = 0;
    for_each_instruction(spirv.subspan(kHeaderWords), [&](Words words) {
        switch (opcode_of(words)) {
            case Op::TypeInt:
            case Op::TypeFloat:
                bytes[words[1]] = words[2] / 8;
                break;
            case Op::TypeVector:
                bytes[words[1]] = bytes[words[2]] * words[3];
                break;
            case Op::TypeArray:
                bytes[words[1]] = bytes[words[2]] * constants[words[3]];
                break;
            case Op::TypeStruct:
                for (const uint32_t member : words.subspan(2)) bytes[words[1]] += bytes[member];
                break;
            case Op::TypePointer:
                bytes[words[1]] = bytes[words[3]];
                break;
            case Op::Decorate:
                if (words[2] == kSpecId && words[3] < specialization.size()) {
                    specialized[words[1]] = specialization[words[3]];
                }
                break;
            case Op::Constant:
            case Op::SpecConstant: {
                const auto given = specialized.find(words[2]);
                constants[words[2]] = given == specialized.end() ? words[3] : given->second;
                break;
            }
            case Op::Variable:
                if (words[3] == kWorkgroup) total += bytes[words[1]];
                break;
            default:
                break;
        }
    });
    return total;
}

VkSubgroupFeatureFlags subgroup_features_of(std::span<const uint32_t> spirv) {
    // The capabilities GroupNonUniform, ...Vote, ...Arithmetic and so on are in the order of Vulkan's bits.
    constexpr uint32_t kGroupNonUniform = 61, kGroupNonUniformQuad = 68;
    VkSubgroupFeatureFlags features = 0;
    for_each_instruction(spirv.subspan(kHeaderWords), [&](Words words) {
        if (opcode_of(words) != Op::Capability || words[1] < kGroupNonUniform ||
            words[1] > kGroupNonUniformQuad)
            return;
        features |= VkSubgroupFeatureFlags{1} << (words[1] - kGroupNonUniform);
    });
    return features;
}

void keep_halves_in_memory(std::vector<uint32_t>& spirv) {
    constexpr uint32_t kFloat16 = 9, kStorageBuffer16BitAccess = 4433;
    for_each_instruction(Words(spirv).subspan(kHeaderWords), [&](Words words) {
        if (opcode_of(words) == Op::Capability && words[1] == kFloat16)
            spirv[words.data() - spirv.data() + 1] = kStorageBuffer16BitAccess;
    });
}

}  // namespace anymps::vulkan
