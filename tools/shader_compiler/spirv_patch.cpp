#include "spirv_patch.h"

#include <map>
#include <set>
#include <stdexcept>

#include "spirv/opcodes.h"

namespace anymps::shader_compiler {

namespace {

// Numbers of the SPIR-V specification, sections 3.52 (instructions) and 3.20 (decorations).
constexpr uint32_t kOpSourceContinued = 2, kOpSource = 3, kOpSourceExtension = 4, kOpName = 5,
                   kOpMemberName = 6, kOpString = 7, kOpLine = 8, kOpNoLine = 317, kOpModuleProcessed = 330;
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
    if (words.size() < spirv::kHeaderWords)
        throw std::runtime_error("The SPIR-V module is shorter than its header.");
    std::vector<uint32_t> out(words.begin(), words.begin() + spirv::kHeaderWords);
    spirv::for_each_instruction(words.subspan(spirv::kHeaderWords), [&](spirv::Words i) {
        if (spirv::opcode_of(i) == spirv::Op::Decorate && i[2] == kDecorationDescriptorSet) {
            throw std::runtime_error(
                "the kernel uses a descriptor; arguments are uniform parameters of the entry "
                "point, and memory is reached by address.");
        }
        if (!is_debug(i[0] & 0xffffu)) out.insert(out.end(), i.begin(), i.end());
    });
    return out;
}

std::vector<uint32_t> with_read_only_arguments(std::span<const uint32_t> words) {
    using spirv::Op;
    // Numbers of the SPIR-V specification, sections 3.20 (decorations) and 3.7 (storage classes).
    constexpr uint32_t kNonWritable = 24, kPushConstant = 9, kPhysicalStorageBuffer = 5349;
    std::map<uint32_t, spirv::Words> types;
    std::set<uint32_t> arguments;
    const auto pointee = [&](uint32_t id, uint32_t storage_class) -> spirv::Words {
        const auto pointer = types.find(id);
        if (pointer == types.end() || spirv::opcode_of(pointer->second) != Op::TypePointer ||
            pointer->second[2] != storage_class)
            return {};
        const auto type = types.find(pointer->second[3]);
        return type == types.end() ? spirv::Words{} : type->second;
    };
    spirv::for_each_instruction(words.subspan(spirv::kHeaderWords), [&](spirv::Words i) {
        const Op op = spirv::opcode_of(i);
        if (op == Op::TypeStruct || op == Op::TypePointer) types.emplace(i[1], i);
        if (op != Op::Variable || i[3] != kPushConstant) return;
        const spirv::Words block = pointee(i[1], kPushConstant);
        if (block.empty()) return;
        for (const uint32_t member : block.subspan(2)) {
            const spirv::Words type = pointee(member, kPhysicalStorageBuffer);
            if (!type.empty() && spirv::opcode_of(type) == Op::TypeStruct) arguments.insert(type[1]);
        }
    });
    const size_t first = spirv::find_instruction(words, spirv::kHeaderWords, Op::MemberDecorate);
    std::vector<uint32_t> out(words.begin(), words.begin() + first);
    for (const uint32_t id : arguments) {
        const uint32_t members = types.at(id).size() - 2;
        for (uint32_t m = 0; m < members; ++m)
            out.insert(out.end(),
                       {4u << 16 | static_cast<uint32_t>(Op::MemberDecorate), id, m, kNonWritable});
    }
    out.insert(out.end(), words.begin() + first, words.end());
    return out;
}

}  // namespace anymps::shader_compiler
