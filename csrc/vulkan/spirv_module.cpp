#include "vulkan/spirv_module.h"

#include <algorithm>

namespace anymps::vulkan {

namespace {

constexpr uint32_t kSpecId = 1;  // a decoration
constexpr uint32_t kNone = UINT32_MAX;

bool between(Op op, uint32_t first, uint32_t last) {
    return static_cast<uint32_t>(op) >= first && static_cast<uint32_t>(op) <= last;
}

// Memory operands begin at word `first`: a mask, the alignment if it has bit 1, ids of scopes.
bool is_memory_literal(Words instruction, size_t first, size_t i) {
    return i == first || (i == first + 1 && (instruction[first] & 2u) != 0);
}

}  // namespace

bool is_literal(Words instruction, size_t i) {
    const Op op = opcode_of(instruction);
    switch (op) {
        case Op::ExtInst:
        case Op::GroupNonUniformBallotBitCount:
            return i == 4;
        case Op::Variable:
            return i == 3;
        case Op::Load:
            return i >= 4 && is_memory_literal(instruction, 4, i);
        case Op::Store:
            return i >= 3 && is_memory_literal(instruction, 3, i);
        case Op::VectorShuffle:
        case Op::CompositeInsert:
            return i >= 5;
        case Op::CompositeExtract:
            return i >= 4;
        case Op::SelectionMerge:
            return i == 2;
        case Op::LoopMerge:
            return i >= 3;
        case Op::BranchConditional:
            return i >= 4;
        case Op::CooperativeMatrixLoad:
            return i >= 6 && is_memory_literal(instruction, 6, i);
        case Op::CooperativeMatrixStore:
            return i >= 5 && is_memory_literal(instruction, 5, i);
        case Op::CooperativeMatrixMulAdd:
            return i == 6;
        default:
            return between(op, 349, 364) && i == 4;  // sums and their like over subgroups
    }
}

bool is_known(Op op) {
    switch (op) {
        case Op::Undef:
        case Op::ExtInst:
        case Op::FunctionCall:
        case Op::Variable:
        case Op::Load:
        case Op::Store:
        case Op::AccessChain:
        case Op::PtrAccessChain:
        case Op::ConvertUToPtr:
        case Op::Bitcast:
        case Op::CopyLogical:
        case Op::AtomicFAdd:
            return true;
        default:
            return between(op, 79, 82) || between(op, 109, 117) || between(op, 126, 152) ||
                   between(op, 154, 191) || between(op, 194, 205) || between(op, 224, 225) ||
                   between(op, 227, 242) || between(op, 246, 251) || between(op, 253, 255) ||
                   between(op, 333, 364) || between(op, 4457, 4460);
    }
}

uint32_t result_of(Words instruction) {
    switch (const Op op = opcode_of(instruction)) {
        case Op::Label:
            return instruction[1];
        case Op::Store:
        case Op::FunctionEnd:
        case Op::ControlBarrier:
        case Op::MemoryBarrier:
        case Op::AtomicStore:
        case Op::CooperativeMatrixStore:
            return 0;
        default:
            return between(op, 246, 255) ? 0 : instruction[2];
    }
}

bool is_removable(Words instruction) {
    constexpr uint32_t kModf = 35, kFrexp = 51, kVolatile = 1;
    const Op op = opcode_of(instruction);
    switch (op) {
        case Op::Undef:
        case Op::Variable:
        case Op::AccessChain:
        case Op::PtrAccessChain:
        case Op::ConvertUToPtr:
        case Op::Bitcast:
        case Op::CopyLogical:
            return true;
        case Op::Load:
            return instruction.size() < 5 || (instruction[4] & kVolatile) == 0;
        case Op::ExtInst:  // these two write through a pointer
            return instruction[4] != kModf && instruction[4] != kFrexp;
        default:
            return between(op, 79, 82) || between(op, 109, 117) || between(op, 126, 152) ||
                   between(op, 154, 191) || between(op, 194, 205);
    }
}

SpirvModule::SpirvModule(Words spirv, std::span<const std::pair<uint32_t, uint32_t>> values, bool compact,
                         std::span<const uint32_t> kept)
    : header_(spirv.first(kHeaderWords)), kept_(kept), bound_(spirv[3]), compact_(compact) {
    canonical_.resize(bound_);
    for (uint32_t id = 0; id < bound_; ++id) canonical_[id] = id;
    constants_.resize(bound_);
    widths_.resize(bound_);
    signed_.resize(bound_);
    local_.resize(bound_);
    spec_ids_.assign(bound_, kNone);
    const size_t functions = spirv::find_instruction(spirv, kHeaderWords, Op::Function);
    for_each_instruction(spirv.subspan(kHeaderWords, functions - kHeaderWords),
                         [&](Words instruction) { read_global(instruction, values); });
    read_functions(spirv.subspan(functions));
    check_switches();
}

uint32_t SpirvModule::new_id() {
    canonical_.push_back(static_cast<uint32_t>(canonical_.size()));
    constants_.push_back({0, 0});
    return canonical_.back();
}

uint32_t SpirvModule::constant_id(uint32_t type, uint64_t bits) {
    uint32_t& id = interned_[{type, bits}];
    if (id != 0) return id;
    id = new_id();
    const uint32_t width = widths_[type];
    constants_[id] = {width, bits};
    if (width == 1) {
        const Op op = bits != 0 ? Op::ConstantTrue : Op::ConstantFalse;
        definitions_.insert(definitions_.end(), {3u << 16 | static_cast<uint32_t>(op), type, id});
        return id;
    }
    if (signed_[type] && width < 32 && (bits >> (width - 1)) != 0) bits |= ~uint64_t{0} << width;
    const uint32_t words = width > 32 ? 5 : 4;
    definitions_.insert(definitions_.end(), {words << 16 | static_cast<uint32_t>(Op::Constant), type, id,
                                             static_cast<uint32_t>(bits)});
    if (width > 32) definitions_.push_back(static_cast<uint32_t>(bits >> 32));
    return id;
}

void SpirvModule::define_constant(Words instruction, uint64_t bits) {
    const uint32_t type = instruction[1], id = instruction[2], width = widths_[type];
    if (width < 64) bits &= (uint64_t{1} << width) - 1;
    constants_[id] = {width, bits};
    if (opcode_of(instruction) == Op::Constant && interned_.try_emplace({type, bits}, id).second)
        definitions_.insert(definitions_.end(), instruction.begin(), instruction.end());
    else
        canonical_[id] = constant_id(type, bits);
}

void SpirvModule::define_spec_op(Words instruction) {
    const uint32_t type = instruction[1], width = scalar_width(type);
    std::vector<ScalarValue> operands;
    for (const uint32_t id : instruction.subspan(4)) operands.push_back(constants_[id]);
    const bool scalars =
        width != 0 && std::ranges::all_of(operands, [](ScalarValue v) { return v.width != 0; });
    if (const auto bits = scalars ? fold(instruction[3], width, operands) : std::nullopt) {
        constants_[instruction[2]] = {width, *bits};
        canonical_[instruction[2]] = constant_id(type, *bits);
        return;
    }
    copy_definition(instruction, 4);
}

void SpirvModule::copy_definition(Words instruction, size_t first_id) {
    for (size_t i = 0; i < instruction.size(); ++i)
        definitions_.push_back(i < first_id ? instruction[i] : canonical_[instruction[i]]);
}

void SpirvModule::read_global(Words instruction, std::span<const std::pair<uint32_t, uint32_t>> values) {
    const auto given = [&](uint32_t id, uint32_t otherwise) {
        const auto found = std::ranges::find_if(
            values, [&](const auto& v) { return spec_ids_[id] != kNone && v.first == spec_ids_[id]; });
        return found == values.end() ? otherwise : found->second;
    };
    const Op op = opcode_of(instruction);
    const bool specializes = op >= Op::SpecConstantTrue && op <= Op::SpecConstant;
    if (specializes && is_kept(spec_ids_[instruction[2]]))
        return copy_definition(instruction, instruction.size());
    switch (op) {
        case Op::EntryPoint:
            known_ &= entry_ == 0;
            entry_ = instruction[2];
            break;
        case Op::Decorate:
            return read_decoration(instruction);
        case Op::TypeBool:
            widths_[instruction[1]] = 1;
            break;
        case Op::TypeInt:
            widths_[instruction[1]] = instruction[2];
            signed_[instruction[1]] = instruction[3] != 0;
            if (instruction[2] == 32) int_type_ = instruction[1];
            break;
        case Op::ConstantTrue:
        case Op::ConstantFalse:
            return define_constant(instruction, op == Op::ConstantTrue);
        case Op::SpecConstantTrue:
        case Op::SpecConstantFalse:
            return define_constant(instruction, given(instruction[2], op == Op::SpecConstantTrue) != 0);
        case Op::ConstantNull:
            if (widths_[instruction[1]] != 0) return define_constant(instruction, 0);
            break;
        case Op::Constant:
        case Op::SpecConstant: {
            if (widths_[instruction[1]] == 0) {  // float
                std::vector<uint32_t> words(instruction.begin(), instruction.end());
                words[0] = (words[0] & ~0xffffu) | static_cast<uint32_t>(Op::Constant);
                words[3] = given(instruction[2], instruction[3]);
                definitions_.insert(definitions_.end(), words.begin(), words.end());
                return;
            }
            const uint64_t high = instruction.size() > 4 ? instruction[4] : 0;
            return define_constant(instruction, high << 32 | given(instruction[2], instruction[3]));
        }
        case Op::SpecConstantOp:
            return define_spec_op(instruction);
        case Op::SpecConstantComposite:
            copy_definition(instruction, 3);
            definitions_[definitions_.size() - instruction.size()] =
                instruction[0] - static_cast<uint32_t>(Op::SpecConstantComposite) +
                static_cast<uint32_t>(Op::ConstantComposite);
            return;
        case Op::ConstantComposite:
            return copy_definition(instruction, 3);
        case Op::TypeArray:
            return copy_definition(instruction, 3);
        case Op::TypeFunction:
            parameter_types_[instruction[1]] = instruction.subspan(3);
            break;
        case Op::TypeCooperativeMatrix:
            return copy_definition(instruction, 2);
        case Op::Variable:
            return copy_definition(instruction, 4);
        default:
            break;
    }
    const bool defines = static_cast<uint32_t>(op) >= 19 || op == Op::Undef;
    const bool annotates = op == Op::MemberDecorate || op == Op::ExecutionModeId;
    auto& to = defines && !annotates ? definitions_ : preamble_;
    to.insert(to.end(), instruction.begin(), instruction.end());
}

void SpirvModule::read_decoration(Words instruction) {
    const uint32_t id = instruction[1];
    const bool numbers = instruction[2] == kSpecId;
    if (numbers) spec_ids_[id] = instruction[3];
    if (!numbers || is_kept(instruction[3]))
        decorations_[id].insert(decorations_[id].end(), instruction.begin(), instruction.end());
}

void SpirvModule::read_functions(Words words) {
    SpirvFunction* function = nullptr;
    SpirvBlock* block = nullptr;
    size_t at = 0, begin = 0;
    for_each_instruction(words, [&](Words instruction) {
        const Op op = opcode_of(instruction);
        local_[result_of(instruction)] = true;
        switch (op) {
            case Op::Function:
                function = &functions_[instruction[2]];
                function->header = instruction;
                break;
            case Op::FunctionParameter:
                function->parameters.push_back(instruction[2]);
                break;
            case Op::FunctionEnd:
                break;
            case Op::Label:
                function->block_of_label[instruction[1]] = static_cast<uint32_t>(function->blocks.size());
                block = &function->blocks.emplace_back(SpirvBlock{instruction[1], {}, {}, {}});
                begin = at + instruction.size();
                break;
            default:
                known_ &= is_known(op);
                if (op == Op::LoopMerge || op == Op::SelectionMerge) block->merge = instruction;
                block->terminator = instruction;
                block->body = words.subspan(begin, at + instruction.size() - begin);
        }
        at += instruction.size();
    });
}

// Those over 64-bit numbers have two words a case, and are not known.
void SpirvModule::check_switches() {
    known_ &= int_type_ != 0;
    for (const auto& [id, function] : functions_) {
        for (const SpirvBlock& block : function.blocks) {
            const Words words = block.terminator;
            if (opcode_of(words) != Op::Switch) continue;
            known_ &= words.size() % 2 == 1;
            for (size_t at = 4; at < words.size(); at += 2)
                known_ &= function.block_of_label.contains(words[at]);
        }
    }
}

const std::vector<uint32_t>* SpirvModule::decorations(uint32_t id) const {
    const auto found = decorations_.find(id);
    return found == decorations_.end() ? nullptr : &found->second;
}

std::vector<uint32_t> SpirvModule::assemble(const std::vector<uint32_t>& annotations,
                                            const std::vector<uint32_t>& functions) const {
    std::vector<uint32_t> out(header_.begin(), header_.end());
    out[3] = static_cast<uint32_t>(canonical_.size());
    std::vector<uint32_t> members;
    for_each_instruction(Words(preamble_), [&](Words instruction) {
        const Op op = opcode_of(instruction);
        auto& to = op == Op::MemberDecorate ? members : out;
        const size_t first_id = op == Op::ExecutionModeId ? 3 : instruction.size();
        for (size_t i = 0; i < instruction.size(); ++i)
            to.push_back(i < first_id ? instruction[i] : canonical_[instruction[i]]);
    });
    out.insert(out.end(), members.begin(), members.end());
    for (const auto& [id, words] : decorations_)
        if (!local_[id] && (spec_ids_[id] == kNone || is_kept(spec_ids_[id])))
            out.insert(out.end(), words.begin(), words.end());
    for (const auto* part : {&annotations, &definitions_, &functions})
        out.insert(out.end(), part->begin(), part->end());
    return out;
}

}  // namespace anymps::vulkan
