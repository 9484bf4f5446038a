#include "compiler/written_memory.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

namespace anymps::compiler {
namespace {

// Numbers of the SPIR-V specification, sections 3.52 (instructions) and 3.7 (storage classes).
constexpr size_t kHeaderWords = 5;
enum Op : uint32_t {
    kExtInst = 12,
    kTypeInt = 21,
    kTypeFloat = 22,
    kTypePointer = 32,
    kConstant = 43,
    kFunction = 54,
    kFunctionParameter = 55,
    kFunctionCall = 57,
    kVariable = 59,
    kLoad = 61,
    kStore = 62,
    kCopyMemory = 63,
    kCopyMemorySized = 64,
    kAccessChain = 65,
    kInBoundsAccessChain = 66,
    kPtrAccessChain = 67,
    kInBoundsPtrAccessChain = 70,
    kFirstComposite = 77,  // VectorExtractDynamic
    kLastComposite = 83,   // CopyObject
    kUConvert = 113,
    kSConvert = 114,
    kFirstPointerCast = 117,  // ConvertPtrToU
    kBitcast = 124,
    kIAdd = 128,
    kISub = 130,
    kIMul = 132,
    kSelect = 169,
    kFirstBits = 194,  // ShiftRightLogical
    kLastBits = 200,   // Not
    kFirstAtomic = 229,
    kLastAtomic = 242,
    kAtomicStore = 228,
    kPhi = 245,
    kReturnValue = 254,
    kCopyLogical = 400,
    kCooperativeMatrixStore = 4458,
    kAtomicFMin = 5614,
    kAtomicFMax = 5615,
    kAtomicFAdd = 6035,
};
constexpr uint32_t kPushConstantClass = 9, kPhysicalStorageBuffer = 5349;

using Instruction = std::span<const uint32_t>;

// The parameters that every value may be computed from, as bits, by going over the instructions until nothing
// changes.
class Origins {
  public:
    explicit Origins(std::span<const uint32_t> words) {
        for (size_t at = kHeaderWords; at < words.size(); at += words[at] >> 16) {
            instructions_.push_back(words.subspan(at, words[at] >> 16));
            declare(instructions_.back());
        }
        do {
            changed_ = false;
            for (const Instruction& i : instructions_) visit(i);
        } while (changed_);
    }

    uint64_t written() const { return written_; }

  private:
    static uint32_t op(Instruction i) { return i[0] & 0xffff; }

    void declare(Instruction i) {
        switch (op(i)) {
            case kTypeInt:
            case kTypeFloat:
                narrow_[i[1]] = i[2] < 64;
                break;
            case kTypePointer:
                classes_[i[1]] = i[2];
                break;
            case kConstant:
                constants_[i[2]] = i[3];
                break;
            case kFunction:
                function_ = i[2];
                break;
            case kFunctionParameter:
                parameters_[function_].push_back(i[2]);
                types_[i[2]] = i[1];
                break;
            case kReturnValue:
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
        const uint32_t code = op(i);
        if ((code >= kFirstAtomic && code <= kLastAtomic) || code == kAtomicFMin || code == kAtomicFMax ||
            code == kAtomicFAdd) {
            return write(i[3]);
        }
        if ((code >= kFirstComposite && code <= kLastComposite) ||
            (code >= kFirstBits && code <= kLastBits) || (code >= kFirstPointerCast && code <= kBitcast)) {
            return from_operands(i);
        }
        switch (code) {
            case kVariable:
                if (i[3] == kPushConstantClass) pushed_ = i[2];
                break;
            case kAccessChain:
            case kInBoundsAccessChain:
                if (i[3] == pushed_ && i.size() > 4) {
                    const auto member = constants_.find(i[4]);
                    add(i[2],
                        member == constants_.end() || member->second > 63 ? ~0ull : 1ull << member->second);
                    break;
                }
                [[fallthrough]];
            case kPtrAccessChain:
            case kInBoundsPtrAccessChain:
                bases_[i[2]] = i[3];
                add(i[2], origin(i[3]));
                break;
            case kLoad:
                // A number in memory is no address, unless it has 64 bits.
                if (i[3] == pushed_) {
                    add(i[2], ~0ull);
                } else if (!narrow_[i[1]]) {
                    add(i[2], origin(i[3]));
                }
                break;
            case kStore:
            case kCopyMemory:
            case kCopyMemorySized:
                write(i[1]);
                if (!points_to_memory(i[1])) add_to_variable(i[1], origin(i[2]));
                break;
            case kAtomicStore:
            case kCooperativeMatrixStore:
                write(i[1]);
                break;
            case kFunctionCall:
                call(i);
                break;
            case kReturnValue:
                add(function_of_.at(&i[0]), origin(i[1]));
                break;
            case kExtInst:
            case kUConvert:
            case kSConvert:
            case kIAdd:
            case kISub:
            case kIMul:
            case kSelect:
            case kPhi:
            case kCopyLogical:
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
