#include "compiler/written_memory.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "spirv/opcodes.h"

namespace anymps::compiler {
namespace {

// Storage classes: SPIR-V specification, section 3.7.
constexpr uint32_t kPushConstantClass = 9, kPhysicalStorageBuffer = 5349;

using spirv::Op;
using Instruction = spirv::Words;

// The parameters that every value may be computed from, as bits, by going over the instructions until nothing
// changes.
class Origins {
  public:
    explicit Origins(std::span<const uint32_t> words) {
        spirv::for_each_instruction(words.subspan(spirv::kHeaderWords), [&](Instruction i) {
            instructions_.push_back(i);
            declare(i);
        });
        do {
            changed_ = false;
            for (const Instruction& i : instructions_) visit(i);
        } while (changed_);
    }

    uint64_t written() const { return written_; }

  private:
    void declare(Instruction i) {
        switch (spirv::opcode_of(i)) {
            case Op::TypeInt:
            case Op::TypeFloat:
                narrow_[i[1]] = i[2] < 64;
                break;
            case Op::TypePointer:
                classes_[i[1]] = i[2];
                break;
            case Op::Constant:
                constants_[i[2]] = i[3];
                break;
            case Op::Function:
                function_ = i[2];
                break;
            case Op::FunctionParameter:
                parameters_[function_].push_back(i[2]);
                types_[i[2]] = i[1];
                break;
            case Op::ReturnValue:
                function_of_[&i[0]] = function_;
                break;
            default:
                if (i.size() > 2) types_[i[2]] = i[1];  // of instructions without a result it is never asked
        }
    }

    uint64_t origin(uint32_t id) const {
        const auto found = origins_.find(id);
        return found == origins_.end() ? 0 : found->second;
    }
    void add(uint32_t id, uint64_t bits) {
        uint64_t& known = origins_[id];
        if ((known | bits) == known) return;
        known |= bits;
        changed_ = true;
    }
    // A value that goes into a variable is in what the variable is a part of.
    void add_to_variable(uint32_t pointer, uint64_t bits) {
        for (auto id = pointer;; id = bases_.at(id)) {
            add(id, bits);
            if (!bases_.contains(id)) return;
        }
    }
    bool points_to_memory(uint32_t id) const {
        const auto type = types_.find(id);
        if (type == types_.end()) return true;
        const auto found = classes_.find(type->second);
        return found == classes_.end() || found->second == kPhysicalStorageBuffer;
    }
    void write(uint32_t pointer) {
        if (points_to_memory(pointer)) written_ |= origin(pointer);
    }

    void visit(Instruction i) {
        const Op code = spirv::opcode_of(i);
        if ((code >= Op::AtomicExchange && code <= Op::AtomicXor) || code == Op::AtomicFMin ||
            code == Op::AtomicFMax || code == Op::AtomicFAdd) {
            return write(i[3]);
        }
        if ((code >= Op::VectorExtractDynamic && code <= Op::CopyObject) ||
            (code >= Op::ShiftRightLogical && code <= Op::Not) ||
            (code >= Op::ConvertPtrToU && code <= Op::Bitcast)) {
            return from_operands(i);
        }
        switch (code) {
            case Op::Variable:
                if (i[3] == kPushConstantClass) pushed_ = i[2];
                break;
            case Op::AccessChain:
            case Op::InBoundsAccessChain:
                if (i[3] == pushed_ && i.size() > 4) {
                    const auto member = constants_.find(i[4]);
                    add(i[2],
                        member == constants_.end() || member->second > 63 ? ~0ull : 1ull << member->second);
                    break;
                }
                [[fallthrough]];
            case Op::PtrAccessChain:
            case Op::InBoundsPtrAccessChain:
                bases_[i[2]] = i[3];
                add(i[2], origin(i[3]));
                break;
            case Op::Load:
                // A number in memory is no address, unless it has 64 bits.
                if (i[3] == pushed_) {
                    add(i[2], ~0ull);
                } else if (!narrow_[i[1]]) {
                    add(i[2], origin(i[3]));
                }
                break;
            case Op::Store:
            case Op::CopyMemory:
            case Op::CopyMemorySized:
                write(i[1]);
                if (!points_to_memory(i[1])) add_to_variable(i[1], origin(i[2]));
                break;
            case Op::AtomicStore:
            case Op::CooperativeMatrixStore:
                write(i[1]);
                break;
            case Op::FunctionCall:
                call(i);
                break;
            case Op::ReturnValue:
                add(function_of_.at(&i[0]), origin(i[1]));
                break;
            case Op::ExtInst:
            case Op::UConvert:
            case Op::SConvert:
            case Op::IAdd:
            case Op::ISub:
            case Op::IMul:
            case Op::Select:
            case Op::Phi:
            case Op::CopyLogical:
                from_operands(i);
                break;
            default:
                break;
        }
    }

    // Numbers among the operands are taken for ids too, which finds too much and never too little.
    void from_operands(Instruction i) {
        for (const uint32_t id : i.subspan(3)) add(i[2], origin(id));
    }

    void call(Instruction i) {
        const std::vector<uint32_t>& parameters = parameters_[i[3]];
        for (size_t k = 0; k < parameters.size() && k + 4 < i.size(); ++k) {
            add(parameters[k], origin(i[k + 4]));
            add_to_variable(i[k + 4], origin(parameters[k]));  // what it gets by reference
        }
        add(i[2], origin(i[3]));
    }

    std::vector<Instruction> instructions_;
    std::unordered_map<uint32_t, bool> narrow_;  // types of numbers below 64 bits
    std::unordered_map<uint32_t, uint32_t> classes_, constants_, types_, bases_;
    std::unordered_map<uint32_t, std::vector<uint32_t>> parameters_;
    std::unordered_map<const uint32_t*, uint32_t> function_of_;
    std::unordered_map<uint32_t, uint64_t> origins_;
    uint32_t function_ = 0, pushed_ = 0;
    uint64_t written_ = 0;
    bool changed_ = false;
};

}  // namespace

uint64_t written_parameters(std::span<const uint32_t> words) {
    return Origins(words).written();
}

}  // namespace anymps::compiler
