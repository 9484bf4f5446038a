#include "compiler/push_constants.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

#include "spirv/opcodes.h"

namespace anymps::compiler {
namespace {

// Numbers of the SPIR-V specification, sections 3.20 (decorations), 3.7 (storage classes).
constexpr uint32_t kArrayStride = 6, kOffset = 35, kPushConstant = 9;
constexpr size_t kPointerBytes = 8;

using spirv::Op;
using spirv::opcode_of;
using Instruction = spirv::Words;  // with its first word

class Types {
  public:
    explicit Types(std::span<const uint32_t> words) {
        if (words.size() > spirv::kHeaderWords)
            spirv::for_each_instruction(words.subspan(spirv::kHeaderWords), [&](Instruction i) { add(i); });
    }

    size_t pushed() const {
        size_t bytes = 0;
        for (const uint32_t pointer : variables_) bytes += size_of(types_.at(pointer)[3]);
        return bytes;
    }

    std::vector<PushConstant> members() const {
        if (variables_.empty()) return {};
        const uint32_t id = types_.at(variables_.front())[3];
        const Instruction block = types_.at(id);
        if (variables_.size() > 1 || opcode_of(block) != Op::TypeStruct)
            throw std::runtime_error("The SPIR-V module has push constants that are not one struct.");
        std::vector<PushConstant> result;
        for (uint32_t m = 0; m + 2 < block.size(); ++m) {
            const uint32_t type = block[m + 2];
            const bool is_address = opcode_of(types_.at(type)) == Op::TypePointer;
            PushConstant member{offsets_.at({id, m}), size_of(type), is_address, ScalarKind::other, 0, false};
            set_scalar(is_address ? types_.at(type)[3] : type, &member);
            result.push_back(member);
        }
        return result;
    }

  private:
    void add(Instruction i) {
        switch (opcode_of(i)) {
            case Op::TypeInt:
            case Op::TypeFloat:
            case Op::TypeVector:
            case Op::TypeArray:
            case Op::TypeStruct:
            case Op::TypePointer:
                types_[i[1]] = i;
                break;
            case Op::Constant:
                constants_[i[2]] = i[3];
                break;
            case Op::Variable:
                if (i[3] == kPushConstant) variables_.push_back(i[1]);
                break;
            case Op::Decorate:
                if (i[2] == kArrayStride) strides_[i[1]] = i[3];
                break;
            case Op::MemberDecorate:
                if (i[3] == kOffset) offsets_[{i[1], i[2]}] = i[4];
                break;
            default:
                break;
        }
    }

    // The number that a type consists of, where it is one, a vector or an array.
    void set_scalar(uint32_t type, PushConstant* member) const {
        auto found = types_.find(type);
        if (found == types_.end()) return;
        const Instruction i = found->second;
        switch (opcode_of(i)) {
            case Op::TypeVector:
            case Op::TypeArray:
                set_scalar(i[2], member);
                break;
            case Op::TypeStruct:  // Slang puts an array into one
                if (i.size() == 3) set_scalar(i[2], member);
                break;
            case Op::TypeInt:
                member->kind = i[3] != 0 ? ScalarKind::sint : ScalarKind::uint;
                member->bits = i[2];
                break;
            case Op::TypeFloat:
                member->kind = ScalarKind::floating;
                member->bits = i[2];
                member->is_bfloat = i.size() > 3;  // with an encoding
                break;
            default:
                break;
        }
    }

    size_t size_of(uint32_t type) const {
        const Instruction i = types_.at(type);
        switch (opcode_of(i)) {
            case Op::TypePointer:
                return kPointerBytes;
            case Op::TypeVector:
                return i[3] * size_of(i[2]);
            case Op::TypeArray:
                return size_t{constants_.at(i[3])} * strides_.at(type);
            case Op::TypeStruct: {
                size_t end = 0;
                for (uint32_t m = 0; m + 2 < i.size(); ++m) {
                    end = std::max(end, offsets_.at({type, m}) + size_of(i[m + 2]));
                }
                return end;
            }
            default:
                return i[2] / 8;  // bits of a number
        }
    }

    std::map<uint32_t, Instruction> types_;
    std::map<uint32_t, uint32_t> constants_, strides_;
    std::map<std::pair<uint32_t, uint32_t>, size_t> offsets_;  // by struct and member
    std::vector<uint32_t> variables_;                          // their pointer types
};

}  // namespace

size_t push_constant_bytes(std::span<const uint32_t> words) {
    try {
        return Types(words).pushed();
    } catch (const std::out_of_range&) {
        throw std::runtime_error("The SPIR-V module has push constants of a type that is not known.");
    }
}

std::vector<PushConstant> push_constants(std::span<const uint32_t> words) {
    try {
        return Types(words).members();
    } catch (const std::out_of_range&) {
        throw std::runtime_error("The SPIR-V module has push constants of a type that is not known.");
    }
}

}  // namespace anymps::compiler
