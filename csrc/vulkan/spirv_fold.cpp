#include "vulkan/spirv_fold.h"

#include "spirv/opcodes.h"

namespace anymps::vulkan {

using spirv::Op;

namespace {

uint64_t masked(uint64_t bits, uint32_t width) {
    return width >= 64 ? bits : bits & ((uint64_t{1} << width) - 1);
}

int64_t as_signed(ScalarValue v) {
    const uint32_t unused = 64 - v.width;
    return static_cast<int64_t>(v.bits << unused) >> unused;
}

std::optional<uint64_t> fold_unary(Op op, ScalarValue a) {
    switch (op) {
        case Op::UConvert:
        case Op::Bitcast:
            return a.bits;
        case Op::SConvert:
            return static_cast<uint64_t>(as_signed(a));
        case Op::SNegate:
            return ~a.bits + 1;
        case Op::Not:
            return ~a.bits;
        case Op::LogicalNot:
            return a.bits ^ 1;
        default:
            return std::nullopt;
    }
}

std::optional<uint64_t> fold_division(Op op, ScalarValue a, ScalarValue b) {
    if (b.bits == 0) return std::nullopt;
    switch (op) {
        case Op::UDiv:
            return a.bits / b.bits;
        case Op::UMod:
            return a.bits % b.bits;
        default:
            break;
    }
    const int64_t dividend = as_signed(a), divisor = as_signed(b);
    if (divisor == -1) return std::nullopt;
    const int64_t rest = dividend % divisor;
    switch (op) {
        case Op::SDiv:
            return static_cast<uint64_t>(dividend / divisor);
        case Op::SRem:
            return static_cast<uint64_t>(rest);
        case Op::SMod:
            return static_cast<uint64_t>(rest != 0 && (rest < 0) != (divisor < 0) ? rest + divisor : rest);
        default:
            return std::nullopt;
    }
}

std::optional<uint64_t> fold_shift(Op op, ScalarValue a, ScalarValue b) {
    if (b.bits >= a.width) return std::nullopt;
    switch (op) {
        case Op::ShiftLeftLogical:
            return a.bits << b.bits;
        case Op::ShiftRightLogical:
            return a.bits >> b.bits;
        default:
            return static_cast<uint64_t>(as_signed(a) >> b.bits);
    }
}

std::optional<uint64_t> fold_binary(Op op, ScalarValue a, ScalarValue b) {
    switch (op) {
        case Op::IAdd:
            return a.bits + b.bits;
        case Op::ISub:
            return a.bits - b.bits;
        case Op::IMul:
            return a.bits * b.bits;
        case Op::UDiv:
        case Op::UMod:
        case Op::SDiv:
        case Op::SRem:
        case Op::SMod:
            return fold_division(op, a, b);
        case Op::ShiftLeftLogical:
        case Op::ShiftRightLogical:
        case Op::ShiftRightArithmetic:
            return fold_shift(op, a, b);
        case Op::BitwiseAnd:
        case Op::LogicalAnd:
            return a.bits & b.bits;
        case Op::BitwiseOr:
        case Op::LogicalOr:
            return a.bits | b.bits;
        case Op::BitwiseXor:
        case Op::LogicalNotEqual:
            return a.bits ^ b.bits;
        case Op::LogicalEqual:
        case Op::IEqual:
            return a.bits == b.bits;
        case Op::INotEqual:
            return a.bits != b.bits;
        case Op::UGreaterThan:
            return a.bits > b.bits;
        case Op::UGreaterThanEqual:
            return a.bits >= b.bits;
        case Op::ULessThan:
            return a.bits < b.bits;
        case Op::ULessThanEqual:
            return a.bits <= b.bits;
        case Op::SGreaterThan:
            return as_signed(a) > as_signed(b);
        case Op::SGreaterThanEqual:
            return as_signed(a) >= as_signed(b);
        case Op::SLessThan:
            return as_signed(a) < as_signed(b);
        case Op::SLessThanEqual:
            return as_signed(a) <= as_signed(b);
        default:
            return std::nullopt;
    }
}

}  // namespace

std::optional<uint64_t> fold(uint32_t opcode, uint32_t width, std::span<const ScalarValue> operands) {
    const auto op = static_cast<Op>(opcode);
    std::optional<uint64_t> result;
    if (operands.size() == 1) {
        if (op == Op::Bitcast && operands[0].width != width) return std::nullopt;
        result = fold_unary(op, operands[0]);
    } else if (operands.size() == 2) {
        result = fold_binary(op, operands[0], operands[1]);
    } else if (op == Op::Select && operands.size() == 3) {
        result = operands[0].bits != 0 ? operands[1].bits : operands[2].bits;
    }
    if (result) *result = masked(*result, width);
    return result;
}

}  // namespace anymps::vulkan
