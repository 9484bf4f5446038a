#include "vulkan/spirv_demands.h"

#include <unordered_map>
#include <unordered_set>

#include "spirv/opcodes.h"

namespace anymps::vulkan {

using spirv::for_each_instruction;
using spirv::kHeaderWords;
using spirv::Op;
using spirv::opcode_of;
using spirv::Words;

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

bool works_in_subgroups(std::span<const uint32_t> spirv) {
    return subgroup_features_of(spirv) != 0 || has_capability(spirv, kCooperativeMatrixCapability);
}

bool has_capability(std::span<const uint32_t> spirv, uint32_t capability) {
    bool has = false;
    for_each_instruction(spirv.subspan(kHeaderWords), [&](Words words) {
        has |= opcode_of(words) == Op::Capability && words[1] == capability;
    });
    return has;
}

void keep_halves_in_memory(std::vector<uint32_t>& spirv) {
    constexpr uint32_t kStorageBuffer16BitAccess = 4433;
    uint32_t half = 0;  // the id of the type; as an instruction's first word it is the type of the second
    std::unordered_set<uint32_t> halves;
    size_t capability = 0;
    bool reinterprets = false;
    for_each_instruction(Words(spirv).subspan(kHeaderWords), [&](Words words) {
        if (opcode_of(words) == Op::Capability && words[1] == kFloat16Capability) {
            capability = static_cast<size_t>(words.data() - spirv.data()) + 1;
        } else if (opcode_of(words) == Op::TypeFloat && words[2] == 16) {
            half = words[1];
        } else if (half != 0 && words.size() > 2 && words[1] == half) {
            halves.insert(words[2]);
            reinterprets |= opcode_of(words) == Op::Bitcast;
        } else if (opcode_of(words) == Op::Bitcast) {
            reinterprets |= halves.contains(words[3]);
        }
    });
    if (capability != 0 && !reinterprets) spirv[capability] = kStorageBuffer16BitAccess;
}

}  // namespace anymps::vulkan
