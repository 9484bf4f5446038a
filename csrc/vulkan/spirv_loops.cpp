#include "vulkan/spirv_loops.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "vulkan/spirv_module.h"

namespace anymps::vulkan {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

bool is_type(Op op) {
    return (op >= Op::TypeVoid && op <= Op::TypeFunction) || op == Op::TypeCooperativeMatrix;
}

// The slice of a module backwards from its loops over matrices: through operands, through what is stored to
// the variables that are read, and through the branches that decide which of those stores are made.
class LoopSlice {
  public:
    explicit LoopSlice(Words spirv) : definitions_(spirv[3]), variable_(spirv[3]), seen_(spirv[3]) {
        for_each_instruction(spirv.subspan(kHeaderWords), [&](Words words) { read(words); });
        nest();
    }

    std::vector<uint32_t> constants();

  private:
    // Constructs are runs of blocks, from the one with the merge instruction to the one that it names.
    struct Block {
        std::vector<Words> instructions;
        Words merge;
        uint32_t selection = kNone;  // the innermost selection around it, by its first block
        uint32_t loop = kNone;
        bool holds_matrix_loop = false;  // its construct does
    };
    struct Write {
        Words instruction;
        uint32_t block;
    };

    void read(Words instruction);
    void read_in_function(Words instruction);
    void nest();
    void use(uint32_t id);
    void use_operands(Words instruction);
    void use_branches_around(uint32_t block);

    std::vector<Words> definitions_;                                 // by id
    std::vector<uint32_t> variable_;                                 // by id of a pointer: what it leads into
    std::unordered_map<uint32_t, std::vector<Write>> writes_;        // by variable
    std::unordered_map<uint32_t, uint32_t> spec_ids_;                // by id
    std::unordered_map<uint32_t, std::vector<uint32_t>> functions_;  // blocks by id
    std::unordered_map<uint32_t, uint32_t> block_of_label_;
    std::vector<Block> blocks_;
    // Innermost ones by their first blocks: the last block that multiplies.
    std::unordered_map<uint32_t, uint32_t> matrix_loops_;
    uint32_t function_ = 0;
    std::vector<bool> seen_;
    std::vector<uint32_t> to_use_;
    std::set<uint32_t> found_;
};

void LoopSlice::read(Words words) {
    constexpr uint32_t kSpecId = 1;
    const Op op = opcode_of(words);
    if (op == Op::Decorate && words[2] == kSpecId) {
        spec_ids_[words[1]] = words[3];
    } else if (op == Op::Function) {
        function_ = words[2];
    } else if (function_ != 0) {
        read_in_function(words);
    } else if (is_type(op)) {
        definitions_[words[1]] = words;
    } else if ((op >= Op::ConstantTrue && op <= Op::SpecConstantOp) || op == Op::Variable) {
        definitions_[words[2]] = words;
    }
}

void LoopSlice::read_in_function(Words words) {
    const Op op = opcode_of(words);
    if (op == Op::Label) {
        block_of_label_[words[1]] = static_cast<uint32_t>(blocks_.size());
        functions_[function_].push_back(static_cast<uint32_t>(blocks_.size()));
        blocks_.emplace_back();
        return;
    }
    if (blocks_.empty() || op == Op::FunctionEnd || op == Op::FunctionParameter) return;
    Block& block = blocks_.back();
    block.instructions.push_back(words);
    if (op == Op::LoopMerge || op == Op::SelectionMerge) block.merge = words;
    if (const uint32_t id = result_of(words); id != 0) definitions_[id] = words;
    if (op == Op::Variable) variable_[words[2]] = words[2];
    if (op == Op::AccessChain) variable_[words[2]] = variable_[words[3]];
    const auto writes_to = [&](uint32_t pointer) {
        if (const uint32_t variable = variable_[pointer]; variable != 0)
            writes_[variable].push_back({words, static_cast<uint32_t>(blocks_.size() - 1)});
    };
    if (op == Op::Store) writes_to(words[1]);
    if (op == Op::FunctionCall) std::ranges::for_each(words.subspan(4), writes_to);
}

// Which constructs each block is in.
void LoopSlice::nest() {
    struct Open {
        uint32_t first, end;
        bool loop;
    };
    std::vector<Open> open;
    for (uint32_t i = 0; i < blocks_.size(); ++i) {
        Block& block = blocks_[i];
        std::erase_if(open, [&](const Open& o) { return o.end <= i; });
        for (const Open& o : open) (o.loop ? block.loop : block.selection) = o.first;
        if (!block.merge.empty()) {
            const bool loop = opcode_of(block.merge) == Op::LoopMerge;
            open.push_back({i, block_of_label_[block.merge[1]], loop});
            if (loop) block.loop = i;
        }
        const bool multiplies = std::ranges::any_of(
            block.instructions, [](Words words) { return opcode_of(words) == Op::CooperativeMatrixMulAdd; });
        if (!multiplies || block.loop == kNone) continue;
        matrix_loops_[block.loop] = i;
        for (const Open& o : open)
            if (o.first <= block.loop) blocks_[o.first].holds_matrix_loop = true;
    }
}

void LoopSlice::use(uint32_t id) {
    if (id >= seen_.size() || seen_[id]) return;
    seen_[id] = true;
    to_use_.push_back(id);
}

void LoopSlice::use_operands(Words words) {
    const Op op = opcode_of(words);
    const bool in_function = !is_type(op) && (op < Op::ConstantTrue || op > Op::SpecConstantOp);
    const size_t first = op == Op::TypePointer || op == Op::SpecConstantOp ? 3 : 1;
    const size_t end = op == Op::Switch ? 2 : words.size();
    if (op == Op::TypeInt || op == Op::TypeFloat || op == Op::Constant || op == Op::SpecConstant) return;
    for (size_t i = first; i < end; ++i)
        if (!in_function || !is_literal(words, i)) use(words[i]);
}

// Branches around a loop over matrices do not choose among what it reads.
void LoopSlice::use_branches_around(uint32_t block) {
    for (uint32_t i = blocks_[block].selection; i != kNone; i = blocks_[i].selection)
        if (!blocks_[i].holds_matrix_loop) use_operands(blocks_[i].instructions.back());
}

std::vector<uint32_t> LoopSlice::constants() {
    for (uint32_t i = 0; i < blocks_.size(); ++i) {
        const auto loop = matrix_loops_.find(blocks_[i].loop);
        if (loop == matrix_loops_.end() || i > loop->second) continue;
        for (const Words words : blocks_[i].instructions) use_operands(words);
    }
    while (!to_use_.empty()) {
        const uint32_t id = to_use_.back();
        to_use_.pop_back();
        if (const auto found = spec_ids_.find(id); found != spec_ids_.end()) found_.insert(found->second);
        const Words words = definitions_[id];
        if (words.empty()) continue;
        use_operands(words);
        if (const auto writes = writes_.find(id); writes != writes_.end())
            for (const Write& write : writes->second) {
                use_operands(write.instruction);
                use_branches_around(write.block);
                if (const uint32_t result = result_of(write.instruction); result != 0) use(result);
            }
        if (opcode_of(words) != Op::FunctionCall) continue;
        for (const uint32_t block : functions_[words[3]])
            for (const Words called : blocks_[block].instructions) use_operands(called);
    }
    return {found_.begin(), found_.end()};
}

}  // namespace

std::vector<uint32_t> constants_of_matrix_loops(std::span<const uint32_t> spirv) {
    return LoopSlice(spirv).constants();
}

}  // namespace anymps::vulkan
