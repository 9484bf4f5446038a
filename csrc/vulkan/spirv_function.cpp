#include "vulkan/spirv_function.h"

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_set>

namespace anymps::vulkan {

namespace {

constexpr uint32_t kDontUnroll = 2;     // a loop control
constexpr uint32_t kFlatten = 1;        // a selection control
constexpr uint32_t kMany = UINT32_MAX;  // not one constant

class FunctionSpecializer {
  public:
    FunctionSpecializer(SpirvModule& module, SpecializedFunctions& instances, const SpirvFunction& function,
                        const std::vector<uint32_t>& arguments)
        : module_(module), instances_(instances), function_(function), arguments_(arguments) {}

    void run(SpecializedFunction& result);

  private:
    // A variable of the function, while all that is ever stored to it is one constant.
    struct Variable {
        uint32_t value = 0;    // the constant; 0: nothing is stored
        bool escapes = false;  // its address goes elsewhere than to loads and stores
        std::vector<Words> stores;
    };

    bool analyse();
    size_t count_entries();
    void visit(uint32_t block);
    void evaluate(Words instruction, uint32_t block);
    void evaluate_load(Words instruction, uint32_t block);
    void evaluate_scalar(Words instruction, uint32_t width);
    void evaluate_call(Words instruction);
    void note_variables(Words instruction, uint32_t block);
    void store_constant(uint32_t variable, uint32_t value, uint32_t block);
    void terminate(uint32_t block);
    const SpecializedFunction& callee(Words call);

    bool unwraps(uint32_t block);
    uint32_t next_on_spine(uint32_t block);
    void choose_wrappers();
    bool is_short(uint32_t selection);

    void find_live();
    void use(uint32_t id);
    void use_operands(Words instruction);

    void emit(SpecializedFunction& result);
    void emit_block(SpecializedFunction& result, uint32_t block);
    void emit_instruction(SpecializedFunction& result, Words instruction);
    void emit_terminator(SpecializedFunction& result, uint32_t block);
    uint32_t renamed(SpecializedFunction& result, uint32_t id);
    void put(SpecializedFunction& result, Op op, std::initializer_list<uint32_t> operands) const;

    uint32_t resolved(uint32_t id) const {
        while (id < alias_.size() && alias_[id] != 0) id = alias_[id];
        return module_.canonical(id);
    }
    std::optional<ScalarValue> constant(uint32_t id) const {
        id = resolved(id);
        return module_.is_constant(id) ? std::optional(module_.constant(id)) : std::nullopt;
    }
    uint32_t block_at(uint32_t label) const { return function_.block_of_label.at(label); }
    const SpirvBlock& block(uint32_t i) const { return function_.blocks[i]; }
    uint32_t merge_of(uint32_t i) const { return block_at(block(i).merge[1]); }

    SpirvModule& module_;
    SpecializedFunctions& instances_;
    const SpirvFunction& function_;
    const std::vector<uint32_t>& arguments_;

    std::vector<uint32_t> alias_;  // by id: the id that has the same value
    std::unordered_map<uint32_t, Variable> variables_, known_variables_;
    std::vector<bool> is_variable_;                // by id: whether variables_ has it
    std::unordered_map<uint32_t, uint32_t> base_;  // the variable that a pointer leads into
    using Held = std::vector<std::pair<uint32_t, uint32_t>>;
    struct State {
        Held held;  // variables that hold a constant at this point, and the constants
        bool reached = false, needed = false, wrapped = true;
        std::optional<bool> unwraps;
        std::vector<uint32_t> next;
        bool decided = false;  // the branch has one way left
    };
    std::vector<State> state_;
    std::vector<uint32_t> entries_;  // ways into each block when it was last analysed; empty: not yet
    size_t ways_ = SIZE_MAX;         // and into all of them
    std::vector<std::vector<uint32_t>> previous_;

    std::unordered_map<uint32_t, Words> definitions_;
    std::vector<bool> live_;
    std::vector<uint32_t> to_use_;
    std::vector<uint32_t> renamed_;
};

// Until nothing more becomes known: what is not reached stores nothing, and so decides more branches.
bool FunctionSpecializer::analyse() {
    alias_.assign(module_.bound(), 0);
    for (size_t i = 0; i < function_.parameters.size(); ++i)
        if (i < arguments_.size()) alias_[function_.parameters[i]] = arguments_[i];
    known_variables_ = std::move(variables_);
    variables_.clear();
    is_variable_.assign(module_.bound(), false);
    state_.assign(function_.blocks.size(), {});
    std::vector<uint32_t> waiting{0};
    state_[0].reached = true;
    while (!waiting.empty()) {
        const uint32_t i = waiting.back();
        waiting.pop_back();
        visit(i);
        for (const uint32_t next : state_[i].next) {
            if (state_[next].reached) continue;
            state_[next].reached = true;
            if (!entries_.empty() && entries_[next] == 1) state_[next].held = state_[i].held;
            waiting.push_back(next);
        }
    }
    const size_t ways = count_entries();
    const bool fewer = !variables_.empty() && ways < ways_;
    ways_ = ways;
    return fewer || std::ranges::any_of(variables_, [&](const auto& v) {
               const auto before = known_variables_.find(v.first);
               return v.second.value != kMany &&
                      (before == known_variables_.end() || before->second.value != v.second.value);
           });
}

size_t FunctionSpecializer::count_entries() {
    size_t ways = 0;
    entries_.assign(state_.size(), 0);
    for (const State& state : state_) {
        ways += state.next.size();
        for (const uint32_t next : state.next) ++entries_[next];
    }
    return ways;
}

void FunctionSpecializer::visit(uint32_t i) {
    for_each_instruction(block(i).body, [&](Words instruction) {
        note_variables(instruction, i);
        evaluate(instruction, i);
    });
    terminate(i);
}

void FunctionSpecializer::store_constant(uint32_t variable, uint32_t value, uint32_t i) {
    value = resolved(value);
    if (!module_.is_constant(value)) value = kMany;
    Held& held = state_[i].held;
    std::erase_if(held, [&](const auto& h) { return h.first == variable; });
    if (value != kMany) held.emplace_back(variable, value);
    Variable& v = variables_[variable];
    v.value = v.value == 0 || v.value == value ? value : kMany;
}

void FunctionSpecializer::note_variables(Words instruction, uint32_t block) {
    const Op op = opcode_of(instruction);
    if (op == Op::Variable) {
        variables_.try_emplace(instruction[2]);
        is_variable_[instruction[2]] = true;
        if (instruction.size() > 4) store_constant(instruction[2], instruction[4], block);
        return;
    }
    if (op == Op::Load) return;
    size_t first = 1;
    if (op == Op::Store) {
        if (is_variable_[instruction[1]]) store_constant(instruction[1], instruction[2], block);
        first = 2;
    }
    for (size_t i = first; i < instruction.size(); ++i) {
        const uint32_t id = instruction[i];
        if (id < is_variable_.size() && is_variable_[id] && !is_literal(instruction, i)) {
            variables_[id].value = kMany;
            variables_[id].escapes = true;
        }
    }
}

// Of a variable: what it always holds, or here.
void FunctionSpecializer::evaluate_load(Words instruction, uint32_t i) {
    const auto found = known_variables_.find(instruction[3]);
    if (found == known_variables_.end() || found->second.escapes) return;
    if (found->second.value != 0 && found->second.value != kMany) {
        alias_[instruction[2]] = found->second.value;
        return;
    }
    for (const auto& [variable, value] : state_[i].held)
        if (variable == instruction[3]) alias_[instruction[2]] = value;
}

void FunctionSpecializer::evaluate(Words instruction, uint32_t i) {
    const Op op = opcode_of(instruction);
    if (op == Op::Load) return evaluate_load(instruction, i);
    if (result_of(instruction) == 0 || op == Op::Variable) return;
    const uint32_t width = module_.scalar_width(instruction[1]);
    if (op == Op::FunctionCall) {
        if (width != 0) evaluate_call(instruction);
        return;
    }
    if (op == Op::Select) {
        if (const auto condition = constant(instruction[3]))
            alias_[instruction[2]] = resolved(instruction[condition->bits != 0 ? 4 : 5]);
        return;
    }
    if (width != 0 && instruction.size() <= 7) evaluate_scalar(instruction, width);
}

void FunctionSpecializer::evaluate_call(Words instruction) {
    if (const SpecializedFunction& instance = callee(instruction); instance.pure && instance.result != 0)
        alias_[instruction[2]] = instance.result;
}

void FunctionSpecializer::evaluate_scalar(Words instruction, uint32_t width) {
    constexpr uint32_t kUMin = 38, kSMin = 39, kUMax = 41, kSMax = 42;
    const Op op = opcode_of(instruction);
    const bool extended = op == Op::ExtInst;
    std::array<ScalarValue, 2> operands;
    size_t count = 0;
    const size_t first = extended ? 5 : 3;
    for (const uint32_t id : instruction.subspan(first)) {
        const auto value = count < 2 && !is_literal(instruction, first + count) ? constant(id) : std::nullopt;
        if (!value) {
            count = 0;
            break;
        }
        operands[count++] = *value;
    }
    std::optional<uint64_t> bits;
    if (extended && count == 2) {
        const bool is_signed = instruction[4] == kSMin || instruction[4] == kSMax;
        const bool least = instruction[4] == kUMin || instruction[4] == kSMin;
        if (!least && instruction[4] != kUMax && instruction[4] != kSMax) return;
        const Op less = is_signed ? Op::SLessThan : Op::ULessThan;
        bits = operands[*fold(static_cast<uint32_t>(less), 1, operands) == least ? 0 : 1].bits;
    } else if (!extended && count != 0) {
        bits = fold(static_cast<uint32_t>(op), width, std::span(operands).first(count));
    } else if (op == Op::LogicalAnd || op == Op::LogicalOr) {
        for (const size_t side : {3, 4}) {
            const auto value = constant(instruction[side]);
            if (!value) continue;
            const bool decides = (value->bits != 0) == (op == Op::LogicalOr);
            alias_[instruction[2]] = resolved(instruction[decides ? side : 7 - side]);
        }
        return;
    }
    if (bits) alias_[instruction[2]] = module_.constant_id(instruction[1], *bits);
}

const SpecializedFunction& FunctionSpecializer::callee(Words call) {
    std::vector<uint32_t> arguments;
    for (const uint32_t id : call.subspan(4)) {
        const uint32_t value = resolved(id);
        arguments.push_back(module_.is_constant(value) ? value : 0);
    }
    return instances_.get(call[3], arguments);
}

void FunctionSpecializer::terminate(uint32_t i) {
    const Words words = block(i).terminator;
    State& state = state_[i];
    switch (opcode_of(words)) {
        case Op::Branch:
            state.next = {block_at(words[1])};
            break;
        case Op::BranchConditional:
            state.next = {block_at(words[2]), block_at(words[3])};
            if (const auto value = constant(words[1])) {
                state.next = {state.next[value->bits != 0 ? 0 : 1]};
                state.decided = true;
            }
            break;
        case Op::Switch: {
            const auto value = constant(words[1]);
            state.decided = value.has_value();
            state.next = {block_at(words[2])};
            for (size_t at = 3; at + 1 < words.size(); at += 2) {
                if (!value)
                    state.next.push_back(block_at(words[at + 1]));
                else if (words[at] == static_cast<uint32_t>(value->bits))
                    state.next = {block_at(words[at + 1])};
            }
            break;
        }
        default:
            break;
    }
    if (state.next.size() == 1) state.decided = true;
}

// Where straight-line code that begins in a block goes on, constructs taken as a whole; kMany: nowhere.
uint32_t FunctionSpecializer::next_on_spine(uint32_t i) {
    const State& state = state_[i];
    if (!block(i).merge.empty() && !unwraps(i)) return state_[merge_of(i)].reached ? merge_of(i) : kMany;
    return state.next.size() == 1 ? state.next[0] : kMany;
}

// Whether a construct with one way left can lose its merge instruction: its end is not branched to from
// inside other constructs, which is a `break` that needs it.
bool FunctionSpecializer::unwraps(uint32_t i) {
    State& state = state_[i];
    if (state.unwraps) return *state.unwraps;
    state.unwraps = false;  // for loops that lead back here
    if (state.next.size() != 1) return false;
    if (opcode_of(block(i).merge) == Op::LoopMerge && !previous_[block_at(block(i).merge[2])].empty())
        return false;
    const uint32_t end = merge_of(i);
    std::unordered_set<uint32_t> spine;
    for (uint32_t at = state.next[0]; at != end && at != kMany && spine.insert(at).second;)
        at = next_on_spine(at);
    for (const uint32_t from : previous_[end]) {
        const bool plain = state_[from].next.size() == 1 && (block(from).merge.empty() || unwraps(from));
        if (from != i && !(plain && spine.contains(from))) return false;
    }
    state.unwraps = true;
    return true;
}

void FunctionSpecializer::choose_wrappers() {
    previous_.assign(function_.blocks.size(), {});
    for (uint32_t i = 0; i < state_.size(); ++i) {
        if (!state_[i].reached) continue;
        for (const uint32_t next : state_[i].next) previous_[next].push_back(i);
    }
    for (uint32_t i = 0; i < state_.size(); ++i) {
        if (!state_[i].reached || block(i).merge.empty()) continue;
        state_[i].wrapped = !unwraps(i);
        if (!state_[i].wrapped) continue;
        state_[merge_of(i)].needed = true;
        if (opcode_of(block(i).merge) == Op::LoopMerge) state_[block_at(block(i).merge[2])].needed = true;
    }
}

// Whether a branch skips little. A jump takes llvmpipe 0.4 ms to compile and an addition 0.025; longer ones
// it should take: what division does for extreme operands is 32 instructions, and doubled its time.
bool FunctionSpecializer::is_short(uint32_t selection) {
    constexpr size_t kShort = 28;
    const uint32_t end = merge_of(selection);
    size_t size = 0;
    std::unordered_set<uint32_t> seen{end};
    std::vector<uint32_t> waiting = state_[selection].next;
    while (!waiting.empty() && size <= kShort) {
        const uint32_t i = waiting.back();
        waiting.pop_back();
        if (i > end || !seen.insert(i).second) continue;
        for_each_instruction(block(i).body, [&](Words instruction) {
            const uint32_t id = result_of(instruction);
            size += id != 0 && id < live_.size() && live_[id] && alias_[id] == 0;
        });
        waiting.insert(waiting.end(), state_[i].next.begin(), state_[i].next.end());
    }
    return size <= kShort;
}

void FunctionSpecializer::use(uint32_t id) {
    id = resolved(id);
    if (!module_.is_local(id) || live_[id]) return;
    live_[id] = true;
    to_use_.push_back(id);
}

void FunctionSpecializer::use_operands(Words instruction) {
    const bool is_switch = opcode_of(instruction) == Op::Switch;
    for (size_t i = 1; i < (is_switch ? 2 : instruction.size()); ++i)
        if (!is_literal(instruction, i) && instruction[i] < live_.size()) use(instruction[i]);
}

// Everything with an effect, and what it needs. Stores to a variable count when something reads it.
void FunctionSpecializer::find_live() {
    live_.assign(module_.bound(), false);
    for (uint32_t i = 0; i < state_.size(); ++i) {
        if (!state_[i].reached) continue;
        for_each_instruction(block(i).body, [&](Words instruction) {
            const Op op = opcode_of(instruction);
            const uint32_t id = result_of(instruction);
            if (id != 0) definitions_[id] = instruction;
            if (op == Op::Variable) base_[id] = id;
            if (op == Op::AccessChain && base_.contains(instruction[3])) base_[id] = base_[instruction[3]];
            if (op == Op::Store && base_.contains(instruction[1])) {
                variables_[base_[instruction[1]]].stores.push_back(instruction);
                return;
            }
            if (op == Op::BranchConditional && state_[i].decided) return;
            if (op == Op::Switch && state_[i].decided) return;
            if (id != 0 && alias_[id] != 0) return;
            if (op == Op::FunctionCall ? callee(instruction).pure : id != 0 && is_removable(instruction))
                return;
            use_operands(instruction);
            if (id != 0) use(id);
        });
    }
    while (!to_use_.empty()) {
        const uint32_t id = to_use_.back();
        to_use_.pop_back();
        const auto found = definitions_.find(id);
        if (found == definitions_.end()) continue;  // a parameter or a label
        use_operands(found->second);
        if (opcode_of(found->second) == Op::Variable)
            for (const Words store : variables_[id].stores) use_operands(store);
    }
}

uint32_t FunctionSpecializer::renamed(SpecializedFunction& result, uint32_t id) {
    id = resolved(id);
    if (!module_.is_local(id)) return id;
    if (renamed_[id] == 0) {
        renamed_[id] = module_.new_id();
        if (const auto* words = module_.decorations(id)) {
            const size_t begin = result.annotations.size();
            result.annotations.insert(result.annotations.end(), words->begin(), words->end());
            for (size_t at = begin; at < result.annotations.size(); at += result.annotations[at] >> 16)
                result.annotations[at + 1] = renamed_[id];
        }
    }
    return renamed_[id];
}

void FunctionSpecializer::put(SpecializedFunction& result, Op op,
                              std::initializer_list<uint32_t> operands) const {
    result.words.push_back(static_cast<uint32_t>(operands.size() + 1) << 16 | static_cast<uint32_t>(op));
    result.words.insert(result.words.end(), operands);
}

void FunctionSpecializer::emit_instruction(SpecializedFunction& result, Words instruction) {
    const Op op = opcode_of(instruction);
    const uint32_t id = result_of(instruction);
    if (id != 0 && (alias_[id] != 0 || !live_[id])) return;
    if (op == Op::Store) {
        const auto base = base_.find(instruction[1]);
        if (base != base_.end() && !live_[base->second]) return;
        if (base == base_.end()) result.pure = false;
    } else if (op == Op::FunctionCall) {
        const SpecializedFunction& called = callee(instruction);
        result.calls.push_back(&called);
        result.pure &= called.pure;
        put(result, op, {});
        result.words.back() = instruction[0];
        result.words.insert(result.words.end(), {instruction[1], renamed(result, id), called.id});
        for (const uint32_t argument : instruction.subspan(4))
            result.words.push_back(renamed(result, argument));
        return;
    } else if (!is_removable(instruction)) {
        result.pure = false;
    }
    result.words.push_back(instruction[0]);
    for (size_t i = 1; i < instruction.size(); ++i)
        result.words.push_back(is_literal(instruction, i) ? instruction[i] : renamed(result, instruction[i]));
}

void FunctionSpecializer::emit_terminator(SpecializedFunction& result, uint32_t i) {
    const SpirvBlock& from = block(i);
    const State& state = state_[i];
    const Words words = from.terminator;
    const bool wrapped = !from.merge.empty() && state.wrapped;
    if (wrapped) {
        result.words.push_back(from.merge[0]);
        for (size_t at = 1; at < from.merge.size(); ++at)
            result.words.push_back(is_literal(from.merge, at) ? from.merge[at]
                                                              : renamed(result, from.merge[at]));
    }
    // Unless told not to, drivers unroll what has at most 32 steps, and then compile each of them.
    const bool loop = wrapped && opcode_of(from.merge) == Op::LoopMerge;
    if (module_.compact() && loop && from.merge[3] == 0) result.words.back() = kDontUnroll;
    const bool selection = wrapped && opcode_of(from.merge) == Op::SelectionMerge;
    const bool undecided = selection && !state.decided && from.merge[2] == 0;
    if (module_.compact() && undecided && is_short(i)) result.words.back() = kFlatten;
    if (state.decided && selection) {  // a construct that `break`s leave
        return put(result, Op::Switch, {module_.zero(), renamed(result, block(state.next[0]).label)});
    }
    if (state.decided) return put(result, Op::Branch, {renamed(result, block(state.next[0]).label)});
    if (opcode_of(words) == Op::ReturnValue) {
        const uint32_t value = resolved(words[1]);
        const uint32_t returned = module_.is_constant(value) ? value : kMany;
        result.result = result.result == 0 || result.result == returned ? returned : kMany;
    }
    const bool is_switch = opcode_of(words) == Op::Switch;
    result.words.push_back(words[0]);
    for (size_t at = 1; at < words.size(); ++at) {
        const bool literal = is_switch ? at >= 3 && at % 2 == 1 : is_literal(words, at);
        result.words.push_back(literal ? words[at] : renamed(result, words[at]));
    }
}

void FunctionSpecializer::emit_block(SpecializedFunction& result, uint32_t i) {
    put(result, Op::Label, {renamed(result, block(i).label)});
    for_each_instruction(block(i).body, [&](Words instruction) {
        const Op op = opcode_of(instruction);
        const bool ends = op == Op::LoopMerge || op == Op::SelectionMerge ||
                          instruction.data() == block(i).terminator.data();
        if (!ends) emit_instruction(result, instruction);
    });
    emit_terminator(result, i);
}

void FunctionSpecializer::emit(SpecializedFunction& result) {
    constexpr uint32_t kDontInline = 2;
    renamed_.assign(module_.bound(), 0);
    result.pure = true;
    const Words header = function_.header;
    put(result, Op::Function, {header[1], result.id, header[3] & ~kDontInline, header[4]});
    const Words types = module_.parameter_types(header[4]);
    for (size_t i = 0; i < function_.parameters.size(); ++i) {
        const uint32_t id = module_.new_id();
        if (alias_[function_.parameters[i]] == 0) renamed_[function_.parameters[i]] = id;
        put(result, Op::FunctionParameter, {types[i], id});
    }
    std::unordered_map<uint32_t, uint32_t> header_of_continue;
    for (uint32_t i = 0; i < state_.size(); ++i) {
        if (state_[i].reached && state_[i].wrapped && !block(i).merge.empty() &&
            opcode_of(block(i).merge) == Op::LoopMerge)
            header_of_continue[block_at(block(i).merge[2])] = i;
    }
    for (uint32_t i = 0; i < state_.size(); ++i) {
        if (state_[i].reached) {
            emit_block(result, i);
        } else if (state_[i].needed) {  // named by a merge instruction, never run
            put(result, Op::Label, {renamed(result, block(i).label)});
            const auto loop = header_of_continue.find(i);
            if (loop != header_of_continue.end())
                put(result, Op::Branch, {renamed(result, block(loop->second).label)});
            else
                put(result, Op::Unreachable, {});
        }
    }
    put(result, Op::FunctionEnd, {});
    if (result.result == kMany || !result.pure) result.result = 0;
}

void FunctionSpecializer::run(SpecializedFunction& result) {
    while (analyse()) {
    }
    choose_wrappers();
    find_live();
    emit(result);
}

}  // namespace

const SpecializedFunction& SpecializedFunctions::get(uint32_t function,
                                                     const std::vector<uint32_t>& arguments, uint32_t id) {
    auto& instance = instances_[{function, arguments}];
    if (!instance) {
        auto made = std::make_unique<SpecializedFunction>();
        made->id = id != 0 ? id : module_.new_id();
        FunctionSpecializer(module_, *this, module_.function(function), arguments).run(*made);
        instance = std::move(made);
    }
    return *instance;
}

}  // namespace anymps::vulkan
