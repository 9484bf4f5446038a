#include "ops/conv/plan.h"

#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "ops/amax_state.h"
#include "ops/conv/text.h"

namespace anymps::ops {
namespace {

// Of a tensor that is given: as ATen has them.
std::vector<int64_t> sizes_of(const ConvProblem& p, int32_t buffer) {
    const bool filter = buffer == kW || buffer == kFilterOut;
    const ConvTensor& t = filter                ? (buffer == kW ? p.w : p.filter_out)
                          : buffer == kImageOut ? p.image_out
                          : buffer == kX        ? p.x
                                                : p.y;
    std::vector<int64_t> sizes{filter ? t.outer * p.groups : t.outer,
                               filter ? t.channels : t.channels * p.groups};
    sizes.insert(sizes.end(), t.sizes.end() - p.params.spatial, t.sizes.end());
    return sizes;
}

int64_t product_of(std::span<const int64_t> sizes) {
    return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace

int64_t ConvPlan::workspace_bytes() const {
    int64_t bytes = 0;
    for (const Temporary& t : temporaries) bytes += product_of(t.sizes) * kernels::element_size(t.type);
    return bytes;
}

std::string to_text(const ConvProblem& p, const ConvPlan& plan) {
    constexpr const char* kWhen[] = {"", " if scales are valid", " with its amax", " if scales are invalid"};
    const auto last = [&](const Dim3& v) {
        return list_of(std::span(v).last(static_cast<size_t>(p.params.spatial)));
    };
    const auto sizes = [&](int32_t buffer) { return list_of(sizes_of(p, buffer)); };
    std::string names;
    for (const std::string& name : plan.algorithms) names += (names.empty() ? "" : ", ") + name;
    std::string text =
        text_of(names, " of ", sizes(kX), " * ", sizes(kW), " = ", sizes(kY), " ",
                kernels::name_of(p.w.memory.type), p.tf32 && p.w.memory.type == DType::F32 ? " (TF32)" : "",
                ", stride ", last(p.params.stride), ", padding ", last(p.params.padding), ", dilation ",
                last(p.params.dilation), ", groups ", p.groups, ":");
    for (const Pass& pass : plan.passes) {
        const bool dispatch = pass.kind == Pass::Kind::Dispatch;
        text += ' ' + (dispatch ? pass.kernel : pass.kind == Pass::Kind::Zero ? "zero" : "sum of splits");
        if (!pass.label.empty()) text += ' ' + pass.label;
        if (pass.seconds > 0) text += text_of(", ", std::lround(pass.seconds * 1e6), " us by the model");
        text += std::string(kWhen[static_cast<int>(pass.when)]) + ';';
    }
    return text + " workspace of " + std::to_string(plan.workspace_bytes()) + " bytes";
}

Memory PlanBuilder::temporary(std::vector<int64_t> sizes, DType type) {
    Memory memory{next_temporary(), type};
    memory.huge = static_cast<uint64_t>(product_of(sizes) * memory.element_size()) > Memory::kHugeBytes;
    plan.temporaries.push_back({std::move(sizes), type});
    return memory;
}

void PlanBuilder::release(int32_t first, int32_t keep) {
    if (plan.passes.empty()) return;
    for (int32_t buffer = first; buffer < next_temporary(); ++buffer) {
        auto& temporary = plan.temporaries[buffer - kGiven];
        if (buffer == keep || std::exchange(temporary.released, true)) continue;
        plan.passes.back().last_of.push_back(buffer);
    }
}

std::string PlanBuilder::sizes(const Memory& memory) const {
    const int32_t temporary = memory.buffer - kGiven;
    return list_of(temporary < 0 ? sizes_of(problem, memory.buffer) : plan.temporaries[temporary].sizes);
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
    field = static_cast<uint64_t>(number) * AmaxState::kBytes;
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
    const uint64_t bytes = static_cast<uint64_t>(builder_.plan.amax_count) * AmaxState::kBytes;
    pass_.accesses.push_back({kAmaxStates, false, 0, bytes});
    return *this;
}

PassWriter& PassWriter::write_amax(int32_t number, bool sample) {
    const uint64_t state = static_cast<uint64_t>(number) * AmaxState::kBytes;
    constexpr uint64_t kExact = AmaxState::kSampleOffset;
    if (sample)
        pass_.accesses.push_back({kAmaxStates, true, state + kExact, AmaxState::kBytes - kExact});
    else
        pass_.accesses.push_back({kAmaxStates, true, state, kExact});
    return *this;
}

PassWriter& PassWriter::when(When when) {
    pass_.when = when;
    return when == When::Always ? *this : read_amaxes();
}

PassWriter& PassWriter::work(double operations, std::string label, double seconds) {
    pass_.operations = operations;
    pass_.seconds = seconds;
    pass_.label = std::move(label);
    return *this;
}

void PassWriter::dispatch(const void* args, size_t bytes, runtime::Grid grid) {
    const auto* begin = static_cast<const std::byte*>(args);
    for (const Field& f : fields_) {
        const auto at = reinterpret_cast<const std::byte*>(f.field) - begin;
        assert_that(at >= 0 && static_cast<size_t>(at) + sizeof(uint64_t) <= bytes);
        pass_.addresses.push_back({static_cast<uint32_t>(at), f.buffer});
    }
    pass_.args.assign(begin, begin + bytes);
    pass_.grid = grid;
    builder_.plan.passes.push_back(std::move(pass_));
}

}  // namespace anymps::ops
