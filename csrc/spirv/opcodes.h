// The instructions of SPIR-V known by name (specification, section 3.49), and a walk over those of a module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

namespace anymps::spirv {

using Words = std::span<const uint32_t>;

constexpr size_t kHeaderWords = 5;  // of a module, before its first instruction

enum class Op : uint32_t {
    Undef = 1,
    ExtInst = 12,
    EntryPoint = 15,
    ExecutionMode = 16,
    Capability = 17,
    TypeVoid = 19,
    TypeBool = 20,
    TypeInt = 21,
    TypeFloat = 22,
    TypeVector = 23,
    TypeArray = 28,
    TypeStruct = 30,
    TypePointer = 32,
    TypeFunction = 33,
    ConstantTrue = 41,
    ConstantFalse = 42,
    Constant = 43,
    ConstantComposite = 44,
    ConstantNull = 46,
    SpecConstantTrue = 48,
    SpecConstantFalse = 49,
    SpecConstant = 50,
    SpecConstantComposite = 51,
    SpecConstantOp = 52,
    Function = 54,
    FunctionParameter = 55,
    FunctionEnd = 56,
    FunctionCall = 57,
    Variable = 59,
    Load = 61,
    Store = 62,
    CopyMemory = 63,
    CopyMemorySized = 64,
    AccessChain = 65,
    InBoundsAccessChain = 66,
    PtrAccessChain = 67,
    InBoundsPtrAccessChain = 70,
    Decorate = 71,
    MemberDecorate = 72,
    VectorExtractDynamic = 77,
    VectorShuffle = 79,
    CompositeConstruct = 80,
    CompositeExtract = 81,
    CompositeInsert = 82,
    CopyObject = 83,
    UConvert = 113,
    SConvert = 114,
    ConvertPtrToU = 117,
    ConvertUToPtr = 120,
    Bitcast = 124,
    SNegate = 126,
    IAdd = 128,
    FAdd = 129,
    ISub = 130,
    IMul = 132,
    UDiv = 134,
    SDiv = 135,
    UMod = 137,
    SRem = 138,
    SMod = 139,
    LogicalEqual = 164,
    LogicalNotEqual = 165,
    LogicalOr = 166,
    LogicalAnd = 167,
    LogicalNot = 168,
    Select = 169,
    IEqual = 170,
    INotEqual = 171,
    UGreaterThan = 172,
    SGreaterThan = 173,
    UGreaterThanEqual = 174,
    SGreaterThanEqual = 175,
    ULessThan = 176,
    SLessThan = 177,
    ULessThanEqual = 178,
    SLessThanEqual = 179,
    ShiftRightLogical = 194,
    ShiftRightArithmetic = 195,
    ShiftLeftLogical = 196,
    BitwiseOr = 197,
    BitwiseXor = 198,
    BitwiseAnd = 199,
    Not = 200,
    ControlBarrier = 224,
    MemoryBarrier = 225,
    AtomicStore = 228,
    AtomicExchange = 229,
    AtomicXor = 242,
    Phi = 245,
    LoopMerge = 246,
    SelectionMerge = 247,
    Label = 248,
    Branch = 249,
    BranchConditional = 250,
    Switch = 251,
    Return = 253,
    ReturnValue = 254,
    Unreachable = 255,
    ExecutionModeId = 331,
    GroupNonUniformElect = 333,
    GroupNonUniformBallot = 339,
    GroupNonUniformBallotBitCount = 342,
    GroupNonUniformShuffle = 345,
    GroupNonUniformFAdd = 350,
    GroupNonUniformQuadSwap = 366,
    CopyLogical = 400,
    TypeCooperativeMatrix = 4456,
    CooperativeMatrixLoad = 4457,
    CooperativeMatrixStore = 4458,
    CooperativeMatrixMulAdd = 4459,
    AtomicFMin = 5614,
    AtomicFMax = 5615,
    AtomicFAdd = 6035,
};

inline Op opcode_of(Words instruction) {
    return static_cast<Op>(instruction[0] & 0xffffu);
}

// The instruction that begins at a word. Throws std::runtime_error where its length is none.
inline Words instruction_at(Words words, size_t at) {
    const size_t count = words[at] >> 16;
    if (count == 0 || at + count > words.size()) throw std::runtime_error("The SPIR-V module is damaged.");
    return words.subspan(at, count);
}

// Calls visit(instruction) in order; the words hold no header.
template <class Visit>
void for_each_instruction(Words words, Visit visit) {
    for (size_t at = 0; at < words.size();) {
        const Words instruction = instruction_at(words, at);
        at += instruction.size();
        visit(instruction);
    }
}

// Where the first instruction of that kind begins among those from `at` on; the number of words where none
// is.
inline size_t find_instruction(Words words, size_t at, Op op) {
    while (at < words.size()) {
        const Words instruction = instruction_at(words, at);
        if (opcode_of(instruction) == op) break;
        at += instruction.size();
    }
    return at;
}

}  // namespace anymps::spirv
