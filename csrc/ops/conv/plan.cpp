#include "ops/conv/plan.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace anymps::ops {
namespace {

// The tensor that a given buffer is.
const ConvTensor& given(const ConvProblem& p, int32_t buffer) {
    switch (buffer) {
        case kX:
            return p.x;
        case kW:
            return p.w;
        case kY:
            return p.y;
        case kImageOut:
            return p.image_out;
        default:
            return p.filter_out;
    }
}

}  // namespace

int64_t ConvPlan::workspace_bytes() const {
    int64_t bytes = 0;
    for (const Temporary& t : temporaries)
        bytes += c10::multiply_integers(t.sizes) * static_cast<int64_t>(c10::elementSize(t.type));
    return bytes;
}

Memory PlanBuilder::temporary(std::vector<int64_t> sizes, at::ScalarType type) {
    constexpr int64_t kMaxBytes = int64_t{1} << 35;
    Memory memory{next_temporary(), type};
    memory.huge = c10::multiply_integers(sizes) * memory.element_size() > kMaxBytes;
    plan.temporaries.push_back({std::move(sizes), type});
    return memory;
}

void PlanBuilder::release(int32_t first, int32_t keep) {
    for (int32_t buffer = first; buffer < next_temporary(); ++buffer) {
        if (buffer == keep) continue;
        const auto uses = [&](const Pass& pass) {
            return std::ranges::any_of(pass.accesses, [&](const auto& a) { return a.buffer == buffer; });
        };
        const auto ends = [&](const Pass& pass) { return std::ranges::count(pass.last_of, buffer) > 0; };
        if (std::ranges::any_of(plan.passes, uses) && !std::ranges::any_of(plan.passes, ends))
            plan.passes.back().last_of.push_back(buffer);
    }
}

std::string PlanBuilder::sizes(const Memory& memory) const {
    if (memory.buffer >= kGiven)
        return c10::str(c10::IntArrayRef(plan.temporaries[memory.buffer - kGiven].sizes));
    const ConvTensor& t = given(problem, memory.buffer);
    const bool filter = memory.buffer == kW || memory.buffer == kFilterOut;
    std::vector<int64_t> sizes{filter ? t.outer * problem.groups : t.outer,
                               filter ? t.channels : t.channels * problem.groups};
    sizes.insert(sizes.end(), t.sizes.end() - problem.params.spatial, t.sizes.end());
    return c10::str(c10::IntArrayRef(sizes));
}

void PlanBuilder::add(Pass::Kind kind, std::initializer_list<Pass::Access> accesses) {
    Pass pass;
    pass.kind = kind;
    pass.accesses = accesses;
    plan.passes.push_back(std::move(pass));
}

PassWriter::PassWriter(PlanBuilder& builder, std::string_view kernel, bool by_pointer,
                       std::span<const uint32_t> constants)
    : builder_(builder) {
    pass_.kernel = kernel;
    pass_.by_pointer = by_pointer;
    pass_.constants.assign(constants.begin(), constants.end());
}

PassWriter& PassWriter::address(uint64_t& field, const Memory& memory, int64_t offset) {
    field = static_cast<uint64_t>(offset * memory.element_size());
    fields_.push_back({&field, memory.buffer});
    return *this;
}

PassWriter& PassWriter::amax(uint64_t& field, int32_t number) {
    if (number < 0) return *this;
    field = static_cast<uint64_t>(number) * AmaxStates::kBytes;
    fields_.push_back({&field, kAmaxStates});
    return *this;
}

PassWriter& PassWriter::amaxes(uint64_t& field) {
    amax(field, 0);
    return read_amaxes();
}

PassWriter& PassWriter::access(int32_t buffer, bool write) {
    pass_.accesses.push_back({buffer, write});
    return *this;
}

PassWriter& PassWriter::read_amaxes() {
    const uint64_t bytes = static_cast<uint64_t>(builder_.plan.amax_count) * AmaxStates::kBytes;
    pass_.accesses.push_back({kAmaxStates, false, 0, bytes});
    return *this;
}

PassWriter& PassWriter::write_amax(int32_t number, bool sample) {
    const uint64_t state = static_cast<uint64_t>(number) * AmaxStates::kBytes;
    constexpr uint64_t kExact = AmaxStates::kSampleOffset;
    if (sample)
        pass_.accesses.push_back({kAmaxStates, true, state + kExact, AmaxStates::kBytes - kExact});
    else
        pass_.accesses.push_back({kAmaxStates, true, state, kExact});
    return *this;
}

PassWriter& PassWriter::when(When when) {
    pass_.when = when;
    return when == When::Always ? *this : read_amaxes();
}

PassWriter& PassWriter::work(double operations, std::string label) {
    pass_.operations = operations;
    pass_.label = std::move(label);
    return *this;
}

void PassWriter::dispatch(const void* args, size_t bytes, kernels::Grid grid) {
    const auto* begin = static_cast<const std::byte*>(args);
    for (const Field& f : fields_) {
        const auto at = reinterpret_cast<const std::byte*>(f.field) - begin;
        TORCH_INTERNAL_ASSERT(at >= 0 && static_cast<size_t>(at) + sizeof(uint64_t) <= bytes);
        pass_.addresses.push_back({static_cast<uint32_t>(at), f.buffer});
    }
    pass_.args.assign(begin, begin + bytes);
    pass_.grid = grid;
    builder_.plan.passes.push_back(std::move(pass_));
}

}  // namespace anymps::ops
