#include "vulkan/spirv_specialize.h"

#include <gtest/gtest.h>

#include "vulkan/spirv_loops.h"
#include "vulkan/spirv_module.h"

namespace anymps::vulkan {
namespace {

using Module = std::vector<uint32_t>;

void add(Module& module, Op op, std::initializer_list<uint32_t> operands) {
    module.push_back(static_cast<uint32_t>(operands.size() + 1) << 16 | static_cast<uint32_t>(op));
    module.insert(module.end(), operands);
}

constexpr uint32_t kVoid = 1, kFunctionType = 2, kUint = 4, kLocal = 5, kShared = 6, kVariable = 7,
                   kSpec = 10, kFive = 11, kSix = 12, kMain = 20, kAddOne = 40, kAddType = 41;

// The beginning of the entry point, up to block 25: local 22 = SpecId 3 == 1 ? 6 : 5.
void begin_main(Module& m) {
    add(m, Op::Function, {kVoid, kMain, 0, kFunctionType});
    add(m, Op::Label, {21});
    add(m, Op::Variable, {kLocal, 22, 7});
    add(m, Op::SelectionMerge, {25, 0});
    add(m, Op::Switch, {kSpec, 23, 1, 24});
    add(m, Op::Label, {23});
    add(m, Op::Store, {22, kFive});
    add(m, Op::Branch, {25});
    add(m, Op::Label, {24});
    add(m, Op::Store, {22, kSix});
    add(m, Op::Branch, {25});
    add(m, Op::Label, {25});
}

// shared = add_one(spec == 1 ? 6 : 5), where add_one adds 6 to what is not 6, and 5 to 6.
Module choice() {
    Module m{0x07230203, 0x00010500, 0, 60, 0};
    add(m, static_cast<Op>(17), {1});  // OpCapability Shader
    add(m, Op::EntryPoint, {5, kMain, 0x6e69616d, 0, kVariable});
    add(m, Op::Decorate, {kSpec, 1, 3});   // SpecId 3
    add(m, static_cast<Op>(19), {kVoid});  // OpTypeVoid
    add(m, Op::TypeFunction, {kFunctionType, kVoid});
    add(m, Op::TypeInt, {kUint, 32, 0});
    add(m, static_cast<Op>(32), {kLocal, 7, kUint});   // OpTypePointer Function
    add(m, static_cast<Op>(32), {kShared, 4, kUint});  // OpTypePointer Workgroup
    add(m, Op::TypeFunction, {kAddType, kUint, kUint});
    add(m, Op::TypeBool, {3});
    add(m, Op::SpecConstant, {kUint, kSpec, 1});
    add(m, Op::Constant, {kUint, kFive, 5});
    add(m, Op::Constant, {kUint, kSix, 6});
    add(m, Op::Variable, {kShared, kVariable, 4});
    begin_main(m);
    add(m, Op::Load, {kUint, 26, 22});
    add(m, Op::FunctionCall, {kUint, 27, kAddOne, 26});
    add(m, Op::Store, {kVariable, 27});
    add(m, Op::Return, {});
    add(m, Op::FunctionEnd, {});
    add(m, Op::Function, {kUint, kAddOne, 0, kAddType});
    add(m, Op::FunctionParameter, {kUint, 42});
    add(m, Op::Label, {43});
    add(m, Op::IEqual, {3, 44, 42, kSix});
    add(m, Op::SelectionMerge, {47, 0});
    add(m, Op::BranchConditional, {44, 45, 47});
    add(m, Op::Label, {45});
    add(m, Op::IAdd, {kUint, 46, 42, kFive});
    add(m, Op::ReturnValue, {46});
    add(m, Op::Label, {47});
    add(m, Op::IAdd, {kUint, 48, 42, kSix});
    add(m, Op::ReturnValue, {48});
    add(m, Op::FunctionEnd, {});
    return m;
}

// The types, constants and the variable of choice().
Module without_functions() {
    Module m = choice();
    size_t at = 5;
    while (opcode_of(Words(m).subspan(at)) != Op::Function) at += m[at] >> 16;
    m.resize(at);
    return m;
}

// The operand of a module's last instruction of this kind.
uint32_t operand_of(const Module& module, Op op, size_t operand) {
    uint32_t result = 99;
    for_each_instruction(Words(module).subspan(5), [&](Words instruction) {
        if (opcode_of(instruction) == op) result = instruction[operand];
    });
    return result;
}

// While shared is 5, it becomes spec; the loop's control is `control`.
Module loop(uint32_t control) {
    Module m = without_functions();
    add(m, Op::Function, {kVoid, kMain, 0, kFunctionType});
    add(m, Op::Label, {21});
    add(m, Op::Branch, {22});
    add(m, Op::Label, {22});
    add(m, Op::Load, {kUint, 26, kVariable});
    add(m, Op::IEqual, {3, 27, 26, kFive});
    add(m, Op::LoopMerge, {25, 24, control});
    add(m, Op::BranchConditional, {27, 24, 25});
    add(m, Op::Label, {24});
    add(m, Op::Store, {kVariable, kSpec});
    add(m, Op::Branch, {22});
    add(m, Op::Label, {25});
    add(m, Op::Return, {});
    add(m, Op::FunctionEnd, {});
    return m;
}

// What the only store of a module stores, if that is a constant; and the number of instructions in functions.
std::pair<uint32_t, size_t> stored(const Module& module) {
    std::unordered_map<uint32_t, uint32_t> constants;
    uint32_t value = 0;
    size_t count = 0;
    for_each_instruction(Words(module).subspan(5), [&](Words instruction) {
        if (opcode_of(instruction) == Op::Constant) constants[instruction[2]] = instruction[3];
        if (opcode_of(instruction) == Op::Store) value = constants[instruction[2]];
        count += static_cast<uint32_t>(opcode_of(instruction)) >= static_cast<uint32_t>(Op::Function);
    });
    return {value, count};
}

TEST(SpirvSpecialize, DecidesWhatConstantsDecide) {
    // The variable, the function, three labels with two branches, store, return, end; the call is gone.
    using Values = std::vector<std::pair<uint32_t, uint32_t>>;
    EXPECT_EQ(stored(specialize(choice(), Values{}, true)), (std::pair<uint32_t, size_t>{11, 10}));
    EXPECT_EQ(stored(specialize(choice(), Values{{3, 1}}, true)).first, 11u);
    EXPECT_EQ(stored(specialize(choice(), Values{{3, 2}}, true)), (std::pair<uint32_t, size_t>{11, 10}));
    Module other = choice();
    other[other.size() - 1 - 2 - 1] = kFive;  // the last addition adds 5
    EXPECT_EQ(stored(specialize(other, Values{{3, 2}}, true)).first, 10u);
    EXPECT_EQ(stored(specialize(other, Values{{4, 2}}, true)).first, 11u);  // no such constant
}

TEST(SpirvSpecialize, LoopsStayLoops) {
    constexpr uint32_t kUnroll = 1, kDontUnroll = 2;
    const auto control_of = [](const Module& module) { return operand_of(module, Op::LoopMerge, 3); };
    EXPECT_EQ(control_of(specialize(loop(0), {}, true)), kDontUnroll);
    EXPECT_EQ(control_of(specialize(loop(kUnroll), {}, true)), kUnroll);
    EXPECT_EQ(control_of(specialize(loop(0), {}, false)), 0u);
}

// if (shared == 5) shared = shared + 5 + ... + 5
Module branch(uint32_t control, int additions) {
    Module m = without_functions();
    add(m, Op::Function, {kVoid, kMain, 0, kFunctionType});
    add(m, Op::Label, {21});
    add(m, Op::Load, {kUint, 26, kVariable});
    add(m, Op::IEqual, {3, 27, 26, kFive});
    add(m, Op::SelectionMerge, {25, control});
    add(m, Op::BranchConditional, {27, 24, 25});
    add(m, Op::Label, {24});
    m[3] = 60 + additions;
    for (int i = 0; i < additions; ++i) add(m, Op::IAdd, {kUint, 60u + i, i == 0 ? 26u : 59u + i, kFive});
    add(m, Op::Store, {kVariable, 59u + additions});
    add(m, Op::Branch, {25});
    add(m, Op::Label, {25});
    add(m, Op::Return, {});
    add(m, Op::FunctionEnd, {});
    return m;
}

// local = 5; if (shared == 6) shared = local, or with `changed`: if (shared == 6) local = 6; shared = local.
// Then local takes shared's first value.
Module reused(bool changed) {
    Module m = without_functions();
    add(m, Op::Function, {kVoid, kMain, 0, kFunctionType});
    add(m, Op::Label, {21});
    add(m, Op::Variable, {kLocal, 22, 7});
    add(m, Op::Store, {22, kFive});
    add(m, Op::Load, {kUint, 26, kVariable});
    add(m, Op::IEqual, {3, 27, 26, kSix});
    add(m, Op::SelectionMerge, {29, 0});
    add(m, Op::BranchConditional, {27, 28, 29});
    add(m, Op::Label, {28});
    if (changed) add(m, Op::Store, {22, kSix});
    add(m, Op::Branch, {changed ? 29u : 30u});
    if (!changed) {
        add(m, Op::Label, {30});
        add(m, Op::Load, {kUint, 31, 22});
        add(m, Op::Store, {kVariable, 31});
        add(m, Op::Branch, {29});
    }
    add(m, Op::Label, {29});
    if (changed) {
        add(m, Op::Load, {kUint, 31, 22});
        add(m, Op::Store, {kVariable, 31});
    }
    add(m, Op::Store, {22, 26});
    add(m, Op::Load, {kUint, 32, 22});
    add(m, Op::Store, {kVariable, 32});
    add(m, Op::Return, {});
    add(m, Op::FunctionEnd, {});
    return m;
}

TEST(SpirvSpecialize, LoadsSeeWhatWasStoredOnTheOnlyWayToThem) {
    const auto first_stored = [](const Module& module) {
        std::unordered_map<uint32_t, uint32_t> constants;
        uint32_t value = 0;
        bool found = false;
        for_each_instruction(Words(module).subspan(5), [&](Words instruction) {
            if (opcode_of(instruction) == Op::Constant) constants[instruction[2]] = instruction[3];
            if (opcode_of(instruction) != Op::Store || instruction[1] != kVariable || found) return;
            value = constants[instruction[2]];
            found = true;
        });
        return value;
    };
    EXPECT_EQ(first_stored(specialize(reused(false), {}, true)), 5u);
    EXPECT_EQ(first_stored(specialize(reused(true), {}, true)), 0u);  // 5 or 6
}

// local = SpecId 3 == 1 ? 6 : 5; if (SpecId 5 == 5) { a loop multiplies matrices by local and by SpecId 6,
// which a function adds; shared = SpecId 4 + 5 }.
Module matrix_loop() {
    constexpr uint32_t kAfter = 13, kAround = 14, kCalled = 15;
    Module m = without_functions();
    Module decorations;
    for (const auto& [id, number] : {std::pair{kAfter, 4u}, {kAround, 5u}, {kCalled, 6u}})
        add(decorations, Op::Decorate, {id, 1, number});
    m.insert(m.begin() + static_cast<ptrdiff_t>(spirv::find_instruction(m, 5, Op::Decorate)),
             decorations.begin(), decorations.end());
    for (const uint32_t id : {kAfter, kAround, kCalled}) add(m, Op::SpecConstant, {kUint, id, 5});
    begin_main(m);
    add(m, Op::IEqual, {3, 26, kAround, kFive});
    add(m, Op::SelectionMerge, {35, 0});
    add(m, Op::BranchConditional, {26, 27, 35});
    add(m, Op::Label, {27});
    add(m, Op::Branch, {28});
    add(m, Op::Label, {28});
    add(m, Op::Load, {kUint, 29, 22});
    add(m, Op::LoopMerge, {33, 32, 0});
    add(m, Op::Branch, {30});
    add(m, Op::Label, {30});
    add(m, Op::FunctionCall, {kUint, 36, kAddOne, 29});
    add(m, Op::CooperativeMatrixMulAdd, {kUint, 31, 29, 36, kFive});
    add(m, Op::Store, {kVariable, 31});
    add(m, Op::IEqual, {3, 37, 31, kSix});
    add(m, Op::BranchConditional, {37, 32, 33});
    add(m, Op::Label, {32});
    add(m, Op::Branch, {28});
    add(m, Op::Label, {33});
    add(m, Op::IAdd, {kUint, 38, kAfter, kFive});
    add(m, Op::Store, {kVariable, 38});
    add(m, Op::Branch, {35});
    add(m, Op::Label, {35});
    add(m, Op::Return, {});
    add(m, Op::FunctionEnd, {});
    add(m, Op::Function, {kUint, kAddOne, 0, kAddType});
    add(m, Op::FunctionParameter, {kUint, 42});
    add(m, Op::Label, {43});
    add(m, Op::IAdd, {kUint, 46, 42, kCalled});
    add(m, Op::ReturnValue, {46});
    add(m, Op::FunctionEnd, {});
    return m;
}

TEST(SpirvSpecialize, LoopsOverMatricesKeepTheirConstants) {
    using Values = std::vector<std::pair<uint32_t, uint32_t>>;
    const auto count = [](const Module& module, Op op) {
        size_t number = 0;
        for_each_instruction(Words(module).subspan(5),
                             [&](Words words) { number += opcode_of(words) == op; });
        return number;
    };
    const Module module = matrix_loop();
    const std::vector<uint32_t> kept = constants_of_matrix_loops(module);
    EXPECT_EQ(kept, (std::vector<uint32_t>{3, 6}));
    EXPECT_TRUE(constants_of_matrix_loops(loop(0)).empty());  // multiplies no matrices

    const Values values{{3, 1}, {4, 7}, {5, 5}, {6, 8}};
    const Module part = specialize(module, values, false, kept);
    EXPECT_EQ(stored(part).first, 12u);
    EXPECT_EQ(count(part, Op::SpecConstant), 2u);
    EXPECT_EQ(count(part, Op::Decorate), 2u);
    EXPECT_EQ(count(part, Op::Switch), 1u);
    EXPECT_EQ(count(part, Op::BranchConditional), 1u);  // the loop's
    EXPECT_EQ(constants_of_matrix_loops(part), kept);

    const Module whole = specialize(module, values, false);
    EXPECT_EQ(count(whole, Op::SpecConstant), 0u);
    EXPECT_EQ(count(whole, Op::Switch), 0u);
    EXPECT_EQ(stored(specialize(part, values, false)), stored(whole));
}

TEST(SpirvSpecialize, BranchesThatSkipLittleAreNotTaken) {
    constexpr uint32_t kNone = 0, kFlatten = 1, kDontFlatten = 2;
    const auto control_of = [](const Module& module) { return operand_of(module, Op::SelectionMerge, 2); };
    EXPECT_EQ(control_of(specialize(branch(kNone, 5), {}, true)), kFlatten);
    EXPECT_EQ(control_of(specialize(branch(kNone, 100), {}, true)), kNone);
    EXPECT_EQ(control_of(specialize(branch(kDontFlatten, 5), {}, true)), kDontFlatten);
    EXPECT_EQ(control_of(specialize(branch(kNone, 5), {}, false)), kNone);
}

TEST(SpirvSpecialize, KeepsWhatItDoesNotKnow) {
    Module module = choice();
    module[module.size() - 1] = 1u << 16 | 4416u;  // OpTerminateInvocation
    EXPECT_EQ(specialize(module, {}, true), module);
}

TEST(SpirvSpecialize, FoldsAsTheSpecificationSays) {
    const auto binary = [](Op op, uint32_t width, uint64_t a, uint64_t b) {
        const ScalarValue operands[]{{width, a}, {width, b}};
        return fold(static_cast<uint32_t>(op), width, operands);
    };
    EXPECT_EQ(binary(Op::IAdd, 32, 0xffffffff, 2), 1u);
    EXPECT_EQ(binary(Op::ISub, 8, 1, 2), 0xffu);
    EXPECT_EQ(binary(Op::SDiv, 32, 0xfffffff9, 2), 0xfffffffdu);  // -7 / 2 = -3
    EXPECT_EQ(binary(Op::SRem, 32, 0xfffffff9, 2), 0xffffffffu);
    EXPECT_EQ(binary(Op::SMod, 32, 0xfffffff9, 2), 1u);
    EXPECT_EQ(binary(Op::UDiv, 32, 7, 0), std::nullopt);
    EXPECT_EQ(binary(Op::SDiv, 32, 0x80000000, 0xffffffff), std::nullopt);
    EXPECT_EQ(binary(Op::ShiftLeftLogical, 32, 1, 32), std::nullopt);
    EXPECT_EQ(binary(Op::ShiftRightArithmetic, 16, 0x8000, 3), 0xf000u);
    EXPECT_EQ(binary(Op::ShiftRightLogical, 16, 0x8000, 3), 0x1000u);
    EXPECT_EQ(binary(Op::SLessThan, 64, ~uint64_t{0}, 0), 1u);
    EXPECT_EQ(binary(Op::ULessThan, 64, ~uint64_t{0}, 0), 0u);
    const ScalarValue byte[]{{8, 0x80}};
    EXPECT_EQ(fold(static_cast<uint32_t>(Op::SConvert), 32, byte), 0xffffff80u);
    EXPECT_EQ(fold(static_cast<uint32_t>(Op::UConvert), 32, byte), 0x80u);
    EXPECT_EQ(fold(static_cast<uint32_t>(Op::Bitcast), 32, byte), std::nullopt);
}

}  // namespace
}  // namespace anymps::vulkan
