#include "vulkan/subgroup_exchange.h"

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "spirv/opcodes.h"
#include "vulkan/check.h"

namespace anymps::vulkan {

using spirv::for_each_instruction;
using spirv::kHeaderWords;
using spirv::Op;
using spirv::opcode_of;
using spirv::Words;

namespace {

using Id = uint32_t;
using Code = std::vector<uint32_t>;

constexpr uint32_t kBasicCapability = 61, kLastCapability = 68;  // of subgroup operations
constexpr uint32_t kLocalSize = 17, kLocalSizeId = 38;
constexpr uint32_t kInput = 1, kWorkgroup = 4;
constexpr uint32_t kBuiltIn = 11, kSubgroupId = 40, kSubgroupLocalInvocationId = 41;
constexpr uint32_t kSubgroup = 3, kAcquireReleaseShared = 0x108, kReduce = 0;

void append(Code& to, Op op, std::initializer_list<Words> operands) {
    const size_t first = to.size();
    to.push_back(0);
    for (const Words part : operands) to.insert(to.end(), part.begin(), part.end());
    to[first] = static_cast<uint32_t>(to.size() - first) << 16 | static_cast<uint32_t>(op);
}

// A module in parts, to each of which something is added. One use.
class Rewriter {
  public:
    Rewriter(std::span<const uint32_t> spirv, uint32_t lanes, bool in_step)
        : lanes_(lanes), in_step_(in_step), header_(spirv.begin(), spirv.begin() + kHeaderWords) {
        Code* part = &head_;
        for_each_instruction(spirv.subspan(kHeaderWords), [&](Words words) {
            const Op op = opcode_of(words);
            if (op == Op::Function) {
                part = &functions_;
            } else if (part == &head_ && op >= Op::TypeVoid && op <= Op::Variable) {
                part = &globals_;
            }
            if (part != &functions_) learn(op, words);
            if (op > Op::GroupNonUniformElect && op <= Op::GroupNonUniformQuadSwap) {
                replace(op, words);
            } else {
                part->insert(part->end(), words.begin(), words.end());
            }
        });
        if (exchange_ != 0) define_exchange();
    }

    Code module() const {
        Code out = header_;
        for_each_instruction(head_, [&](Words words) {
            const Op op = opcode_of(words);
            if (op == Op::Capability && words[1] >= kBasicCapability && words[1] <= kLastCapability) {
                append(out, op, {Code{kBasicCapability}});
            } else {
                append(out, op, {words.subspan(1), op == Op::EntryPoint ? interface_ : Code{}});
            }
        });
        for (const Code* part : {&annotations_, &globals_, &declarations_, &functions_}) {
            out.insert(out.end(), part->begin(), part->end());
        }
        return out;
    }

  private:
    Id new_id() { return header_[3]++; }

    void learn(Op op, Words words) {
        if (op >= Op::TypeVoid && op <= Op::TypeFunction) {
            Code& type = types_[words[1]];
            type = {static_cast<uint32_t>(op)};
            type.insert(type.end(), words.begin() + 2, words.end());
            declared_.emplace(type, words[1]);
        } else if (op == Op::Constant && words.size() == 4) {
            declared_.emplace(constant_key(words[1], words[3]), words[2]);
            values_[words[2]] = words[3];
        } else if (op == Op::Decorate && words[2] == kBuiltIn) {
            builtins_[words[3]] = words[1];
        } else if (op == Op::ExecutionMode && words[2] == kLocalSize) {
            threads_ = words[3] * words[4] * words[5];
        } else if (op == Op::ExecutionModeId && words[2] == kLocalSizeId) {
            thread_ids_.assign(words.begin() + 3, words.end());
        }
    }

    static Code constant_key(Id type, uint32_t value) {
        return {static_cast<uint32_t>(Op::Constant), type, value};
    }
    // Types and constants are declared once.
    Id type(Op op, const Code& operands) {
        Code key{static_cast<uint32_t>(op)};
        key.insert(key.end(), operands.begin(), operands.end());
        const auto [found, is_new] = declared_.emplace(key, 0);
        if (is_new) {
            found->second = new_id();
            types_[found->second] = key;
            append(declarations_, op, {Code{found->second}, operands});
        }
        return found->second;
    }
    Id uint_type() { return type(Op::TypeInt, {32, 0}); }
    Id constant(uint32_t value) {
        const Id uint = uint_type();
        const auto [found, is_new] = declared_.emplace(constant_key(uint, value), 0);
        if (is_new) {
            found->second = new_id();
            append(declarations_, Op::Constant, {Code{uint, found->second, value}});
        }
        return found->second;
    }
    Id variable(uint32_t storage, Id of) {
        const Id pointer = type(Op::TypePointer, {storage, of});
        const Id id = new_id();
        append(declarations_, Op::Variable, {Code{pointer, id, storage}});
        interface_.push_back(id);
        return id;
    }
    Id builtin(uint32_t number) {
        Id& id = builtins_[number];
        if (id == 0) {
            id = variable(kInput, uint_type());
            append(annotations_, Op::Decorate, {Code{id, kBuiltIn, number}});
        }
        return id;
    }
    // Of a workgroup: a constant.
    Id threads() {
        if (thread_ids_.empty()) return constant(threads_);
        if (values_[thread_ids_[1]] != 1 || values_[thread_ids_[2]] != 1) {
            throw Error(
                VK_ERROR_FEATURE_NOT_PRESENT,
                "A kernel with subgroup operations has a workgroup of several dimensions, which a device "
                "without these operations cannot run.");
        }
        return thread_ids_[0];
    }

    // An instruction of a function; result: its id, 0 for a new one.
    Id emit(Op op, Id type, const Code& operands, Id result = 0) {
        if (result == 0) result = new_id();
        append(functions_, op, {Code{type, result}, operands});
        return result;
    }
    Id load(Id pointer) { return emit(Op::Load, uint_type(), {pointer}); }
    Id lane() { return load(builtin(kSubgroupLocalInvocationId)); }

    void replace(Op op, Words words) {
        const Id type = words[1], result = words[2];
        if (op == Op::GroupNonUniformShuffle) {
            shuffled(type, words[4], words[5], result);
        } else if (op == Op::GroupNonUniformFAdd && words[4] == kReduce) {
            combined(Op::FAdd, type, words[5], result);
        } else if (op == Op::GroupNonUniformBallot) {
            emit(Op::CompositeConstruct, type, ballot(words[4]), result);
        } else {
            throw Error(VK_ERROR_FEATURE_NOT_PRESENT,
                        "The subgroup operation " + std::to_string(static_cast<uint32_t>(op)) +
                            " of SPIR-V has no form for devices that do not have it.");
        }
    }

    // The value that another lane has.
    Id shuffled(Id type, Id value, Id from, Id result = 0) {
        const Code& kind = types_[type];
        const Op form = static_cast<Op>(kind[0]);
        if (form == Op::TypeVector) {
            const Id element = kind[1];
            const uint32_t count = kind[2];
            Code parts;
            for (uint32_t i = 0; i < count; ++i) {
                parts.push_back(shuffled(element, emit(Op::CompositeExtract, element, {value, i}), from));
            }
            return emit(Op::CompositeConstruct, type, parts, result);
        }
        if ((form != Op::TypeInt && form != Op::TypeFloat) || kind[1] != 32) {
            throw Error(VK_ERROR_FEATURE_NOT_PRESENT,
                        "Values that lanes exchange in shared memory must be of 32 bits.");
        }
        if (exchange_ == 0) exchange_ = new_id();
        const Id uint = uint_type();
        if (type == uint) return emit(Op::FunctionCall, uint, {exchange_, value, from}, result);
        const Id bits = emit(Op::Bitcast, uint, {value});
        return emit(Op::Bitcast, type, {emit(Op::FunctionCall, uint, {exchange_, bits, from})}, result);
    }

    // The values of all lanes in a binary operation; all lanes get the result.
    Id combined(Op operation, Id type, Id value, Id result = 0) {
        const Id uint = uint_type(), here = lane();
        for (uint32_t mask = 1; mask < lanes_; mask *= 2) {
            const Id from = emit(Op::BitwiseXor, uint, {here, constant(mask)});
            value =
                emit(operation, type, {value, shuffled(type, value, from)}, 2 * mask < lanes_ ? 0 : result);
        }
        return value;
    }

    // Four words, in which each lane that says yes has its bit.
    Code ballot(Id yes) {
        const Id uint = uint_type(), here = lane(), zero = constant(0);
        const Id place = emit(Op::BitwiseAnd, uint, {here, constant(31)});
        const Id bit = emit(Op::ShiftLeftLogical, uint, {constant(1), place});
        const Id mine = emit(Op::Select, uint, {yes, bit, zero});
        const Id word = emit(Op::ShiftRightLogical, uint, {here, constant(5)});
        Code all;
        for (uint32_t i = 0; i < 4; ++i) {
            if (32 * i >= lanes_) {
                all.push_back(zero);
                continue;
            }
            const Id is_mine = emit(Op::IEqual, type(Op::TypeBool, {}), {word, constant(i)});
            all.push_back(combined(Op::BitwiseOr, uint, emit(Op::Select, uint, {is_mine, mine, zero})));
        }
        return all;
    }

    // uint exchange(uint value, uint from): each lane lays its value down and takes that of the lane `from`.
    void define_exchange() {
        const Id uint = uint_type();
        const Id array = new_id();  // not one that the module has: that may be laid out for other memory
        append(declarations_, Op::TypeArray, {Code{array, uint, threads()}});
        const Id slots = variable(kWorkgroup, array);
        const Id pointer = type(Op::TypePointer, {kWorkgroup, uint});
        const Id lanes = constant(lanes_), last = constant(lanes_ - 1);
        const Code order{constant(kSubgroup), constant(kAcquireReleaseShared)};
        const auto barrier = [&] {
            if (in_step_) return append(functions_, Op::MemoryBarrier, {order});
            append(functions_, Op::ControlBarrier, {Code{order[0]}, order});
        };
        emit(Op::Function, uint, {0, type(Op::TypeFunction, {uint, uint, uint})}, exchange_);
        const Id value = emit(Op::FunctionParameter, uint, {});
        const Id from = emit(Op::FunctionParameter, uint, {});
        append(functions_, Op::Label, {Code{new_id()}});
        const Id first = emit(Op::IMul, uint, {load(builtin(kSubgroupId)), lanes});
        const Id mine = emit(Op::AccessChain, pointer, {slots, emit(Op::IAdd, uint, {first, lane()})});
        append(functions_, Op::Store, {Code{mine, value}});
        barrier();
        const Id inside = emit(Op::BitwiseAnd, uint, {from, last});
        const Id theirs = emit(Op::AccessChain, pointer, {slots, emit(Op::IAdd, uint, {first, inside})});
        const Id result = load(theirs);
        barrier();
        append(functions_, Op::ReturnValue, {Code{result}});
        append(functions_, Op::FunctionEnd, {});
    }

    uint32_t lanes_;
    bool in_step_;
    Code header_;
    Code head_, annotations_, globals_, declarations_, functions_;
    Code interface_;               // what the entry point has to name
    std::map<Code, Id> declared_;  // types and constants, by opcode and operands
    std::unordered_map<Id, Code> types_;
    std::unordered_map<Id, uint32_t> values_;  // of constants
    std::unordered_map<uint32_t, Id> builtins_;
    uint32_t threads_ = 0;
    Code thread_ids_;  // of the workgroup's size, where constants give it
    Id exchange_ = 0;  // the function, once something calls it
};

}  // namespace

std::vector<uint32_t> exchange_in_shared_memory(std::span<const uint32_t> spirv, uint32_t lanes,
                                                bool in_step) {
    return Rewriter(spirv, lanes, in_step).module();
}

}  // namespace anymps::vulkan
