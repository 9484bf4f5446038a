#include "spirv/packed_module.h"

#include <array>
#include <stdexcept>
#include <unordered_map>
#include <vector>

namespace anymps::spirv {

namespace {

// Which word of an instruction is its result's id (0: none), and which are literals: bit k is word k. Both
// sides need the same answers, not right ones: an instruction that is not listed takes a few bytes more.
struct Layout {
    uint8_t result = 0;
    uint64_t literals = 0;
};

constexpr uint64_t kAll = ~uint64_t{0};

constexpr uint64_t from(int word) {
    return kAll << word;
}

constexpr uint64_t only(int word) {
    return uint64_t{1} << word;
}

struct Row {
    uint32_t first, last;  // opcodes
    Layout layout;
};

// Of the specification, section 3.49; a row holds for what no later row names.
constexpr Row kRows[] = {
    {0, 10, {0, kAll}},      // names and sources
    {1, 1, {2, 0}},          // Undef
    {11, 11, {1, kAll}},     // ExtInstImport
    {12, 12, {2, only(4)}},  // ExtInst
    {14, 17, {0, kAll}},     // memory model, entry point, execution mode, capability
    {19, 33, {1, 0}},        // types
    {21, 22, {1, kAll}},     // Int, Float
    {23, 23, {1, only(3)}},  // Vector
    {32, 32, {1, only(2)}},  // Pointer
    {41, 52, {2, 0}},        // constants
    {43, 43, {2, from(3)}},
    {50, 50, {2, from(3)}},
    {52, 52, {2, only(3)}},                   // SpecConstantOp
    {54, 57, {2, 0}},                         // functions
    {54, 54, {2, only(3)}},                   //
    {56, 56, {}},                             // FunctionEnd
    {59, 61, {2, 0}},                         // memory
    {59, 59, {2, only(3)}},                   // Variable
    {61, 61, {2, from(4)}},                   // Load
    {62, 62, {0, from(3)}},                   // Store
    {65, 70, {2, 0}},                         // pointers
    {71, 72, {1, kAll}},                      // decorations: their targets follow one another as results do
    {77, 98, {2, 0}},                         // vectors, composites
    {79, 79, {2, from(5)}},                   // VectorShuffle
    {81, 81, {2, from(4)}},                   // CompositeExtract
    {82, 82, {2, from(5)}},                   // CompositeInsert
    {100, 215, {2, 0}},                       // conversions, arithmetic, bits
    {227, 242, {2, 0}},                       // atomics
    {228, 228, {}},                           // AtomicStore
    {245, 245, {2, 0}},                       // Phi
    {246, 246, {0, from(3)}},                 // LoopMerge
    {247, 247, {0, from(2)}},                 // SelectionMerge
    {248, 248, {1, 0}},                       // Label
    {251, 251, {0, kAll / 3 * 2 & from(3)}},  // Switch: literals and labels by turns
    {331, 331, {0, only(2)}},                 // ExecutionModeId
    {333, 366, {2, 0}},                       // subgroups
    {400, 403, {2, 0}},
    {4456, 4456, {1, 0}},  // TypeCooperativeMatrix
    {4457, 4457, {2, 0}},
    {4459, 4460, {2, 0}},
    {5614, 5615, {2, 0}},  // AtomicFMin, AtomicFMax
    {6035, 6035, {2, 0}},  // AtomicFAdd
};

constexpr size_t kOpcodes = 6036;

constexpr auto kRowOf = [] {
    std::array<uint8_t, kOpcodes> rows{};
    for (size_t i = 0; i < std::size(kRows); ++i) {
        for (uint32_t op = kRows[i].first; op <= kRows[i].last; ++op) rows[op] = static_cast<uint8_t>(i + 1);
    }
    return rows;
}();

constexpr Layout kUnlisted{};

const Layout& layout_of(uint32_t op) {
    const uint8_t row = op < kOpcodes ? kRowOf[op] : 0;
    return row == 0 ? kUnlisted : kRows[row - 1].layout;
}

bool is_literal(const Layout& layout, uint32_t word) {
    return layout.literals >> (word < 62 ? word : 62 + word % 2) & 1;
}

bool is_op(uint32_t op, Op known) {
    return op == static_cast<uint32_t>(known);
}

// What both sides have read so far.
struct Context {
    uint32_t last = 0;
    bool in_function = false;

    // True for a result that later operands name by rank.
    bool declares(uint32_t op) {
        in_function |= is_op(op, Op::Function);
        return (!in_function || is_op(op, Op::Function)) && !is_op(op, Op::Decorate) &&
               !is_op(op, Op::MemberDecorate);
    }
};

// Numbers near zero, of either sign, as small ones: 0, -1, 1, -2 become 0, 1, 2, 3.
uint64_t zigzag(int64_t value) {
    return static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63);
}

int64_t unzigzag(uint64_t value) {
    return static_cast<int64_t>(value >> 1 ^ -(value & 1));
}

void append(std::string& bytes, uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
    bytes += static_cast<char>(value);
}

class Reader {
  public:
    explicit Reader(std::span<const uint8_t> bytes) : at_(bytes.data()), end_(at_ + bytes.size()) {}

    bool failed() const { return failed_; }

    uint64_t number() {
        uint64_t value = 0;
        for (int shift = 0; shift < 64 && at_ != end_; shift += 7) {
            const uint8_t byte = *at_++;
            value |= static_cast<uint64_t>(byte & 0x7f) << shift;
            if (byte < 0x80) return value;
        }
        failed_ = true;
        return 0;
    }

  private:
    const uint8_t* at_;
    const uint8_t* end_;
    bool failed_ = false;
};

}  // namespace

void pack(Words module, std::string& bytes) {
    if (module.size() < kHeaderWords) throw std::invalid_argument("A SPIR-V module has a header of 5 words.");
    for (const uint32_t word : module.first(kHeaderWords)) append(bytes, word);
    Context context;
    std::unordered_map<uint32_t, uint32_t> ranks;
    uint32_t declared = 0;
    for (size_t at = kHeaderWords; at < module.size();) {
        const uint32_t op = module[at] & 0xffff, count = module[at] >> 16;
        if (count == 0 || count > module.size() - at)
            throw std::invalid_argument("A SPIR-V module ends within an instruction.");
        append(bytes, op);
        append(bytes, count);
        const Layout& layout = layout_of(op);
        const bool declares = context.declares(op);
        for (uint32_t k = 1; k < count; ++k) {
            const uint32_t word = module[at + k];
            if (k == layout.result) {
                append(bytes, zigzag(int64_t{word} - context.last - 1));
                context.last = word;
                if (declares) ranks[word] = declared++;
            } else if (is_literal(layout, k)) {
                append(bytes, word);
            } else if (const auto rank = ranks.find(word); rank != ranks.end()) {
                append(bytes, uint64_t{rank->second} << 1 | 1);
            } else {
                append(bytes, zigzag(int64_t{context.last} - word) << 1);
            }
        }
        at += count;
    }
}

bool unpack(std::span<const uint8_t> bytes, std::span<uint32_t> module) {
    if (module.size() < kHeaderWords) return false;
    Reader in(bytes);
    for (uint32_t& word : module.first(kHeaderWords)) word = static_cast<uint32_t>(in.number());
    Context context;
    std::vector<uint32_t> declared;
    for (size_t at = kHeaderWords; at < module.size() && !in.failed();) {
        const uint64_t op = in.number(), count = in.number();
        if (op > 0xffff || count == 0 || count > 0xffff || count > module.size() - at) return false;
        module[at] = static_cast<uint32_t>(count << 16 | op);
        const Layout& layout = layout_of(static_cast<uint32_t>(op));
        const bool declares = context.declares(static_cast<uint32_t>(op));
        for (uint32_t k = 1; k < count; ++k) {
            const uint64_t number = in.number();
            uint32_t& word = module[at + k];
            if (k == layout.result) {
                word = context.last = static_cast<uint32_t>(context.last + 1 + unzigzag(number));
                if (declares) declared.push_back(word);
            } else if (is_literal(layout, k)) {
                word = static_cast<uint32_t>(number);
            } else if ((number & 1) == 0) {
                word = static_cast<uint32_t>(context.last - unzigzag(number >> 1));
            } else if (const uint64_t rank = number >> 1; rank < declared.size()) {
                word = declared[rank];
            } else {
                return false;
            }
        }
        at += count;
    }
    return !in.failed();
}

}  // namespace anymps::spirv
