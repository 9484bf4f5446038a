// A SPIR-V module taken apart: functions and blocks, and the values of its scalar constants.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "spirv/opcodes.h"
#include "vulkan/spirv_fold.h"

namespace anymps::vulkan {

using spirv::for_each_instruction;
using spirv::kHeaderWords;
using spirv::Op;
using spirv::opcode_of;
using spirv::Words;

struct SpirvBlock {
    uint32_t label;
    Words body;               // what follows the label
    Words merge, terminator;  // merge: empty where there is none
};

struct SpirvFunction {
    Words header;
    std::vector<uint32_t> parameters;
    std::vector<SpirvBlock> blocks;
    std::unordered_map<uint32_t, uint32_t> block_of_label;
};

// Whether word i of an instruction inside a function is a number, not an id.
bool is_literal(Words instruction, size_t i);

// Whether is_literal knows the instruction.
bool is_known(Op op);

// The id that an instruction defines; 0 for none.
uint32_t result_of(Words instruction);

// Whether an instruction may go when its result is not used; function calls not considered.
bool is_removable(Words instruction);

// Owner: one call of specialize. The words outlive it.
class SpirvModule {
  public:
    // As in specialize.
    SpirvModule(Words spirv, std::span<const std::pair<uint32_t, uint32_t>> values, bool compact,
                std::span<const uint32_t> kept);

    bool compact() const { return compact_; }  // code is to stay small, as in specialize
    bool known() const { return known_; }  // false: the module has instructions or a form that are not known
    uint32_t bound() const { return bound_; }
    uint32_t entry() const { return entry_; }
    const SpirvFunction& function(uint32_t id) const { return functions_.at(id); }

    uint32_t new_id();
    // The id that stands for a global one: equal constants are one.
    uint32_t canonical(uint32_t id) const { return canonical_[id]; }
    bool is_constant(uint32_t id) const { return constants_[id].width != 0; }
    ScalarValue constant(uint32_t id) const { return constants_[id]; }
    uint32_t constant_id(uint32_t type, uint64_t bits);
    uint32_t zero() { return constant_id(int_type_, 0); }
    Words parameter_types(uint32_t function_type) const { return parameter_types_.at(function_type); }
    uint32_t scalar_width(uint32_t type) const {
        return type < bound_ ? widths_[type] : 0;
    }  // 0: no integer, no bool
    bool is_local(uint32_t id) const { return id < bound_ && local_[id]; }
    const std::vector<uint32_t>* decorations(uint32_t id) const;

    // The module with these functions and annotations.
    std::vector<uint32_t> assemble(const std::vector<uint32_t>& annotations,
                                   const std::vector<uint32_t>& functions) const;

  private:
    void read_global(Words instruction, std::span<const std::pair<uint32_t, uint32_t>> values);
    bool is_kept(uint32_t spec_id) const { return std::ranges::find(kept_, spec_id) != kept_.end(); }
    void read_decoration(Words instruction);
    void read_functions(Words words);
    void define_constant(Words instruction, uint64_t bits);
    void define_spec_op(Words instruction);
    void check_switches();
    void copy_definition(Words instruction, size_t first_id);

    Words header_;
    std::span<const uint32_t> kept_;             // SpecIds
    uint32_t bound_, entry_ = 0, int_type_ = 0;  // some integer of 32 bits
    bool compact_, known_ = true;
    std::unordered_map<uint32_t, SpirvFunction> functions_;
    std::unordered_map<uint32_t, Words> parameter_types_;
    std::vector<uint32_t> canonical_, widths_, spec_ids_;
    std::vector<bool> signed_, local_;  // integer types; ids that a function defines
    std::vector<ScalarValue> constants_;
    std::map<std::pair<uint32_t, uint64_t>, uint32_t> interned_;
    std::unordered_map<uint32_t, std::vector<uint32_t>> decorations_;
    std::vector<uint32_t> preamble_, definitions_;
};

}  // namespace anymps::vulkan
