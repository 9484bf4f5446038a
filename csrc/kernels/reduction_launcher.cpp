#include "kernels/reduction_launcher.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/core/Tensor.h>
#include <ATen/mps/EmptyTensor.h>
#include <anymps/shaders/reduction_0.h>

#include <algorithm>
#include <limits>

#include "kernels/check_dtype.h"
#include "kernels/kernel_lanes.h"
#include "kernels/reduce_nc_hw.h"
#include "kernels/reduce_outer.h"
#include "kernels/reduce_small_inner.h"
#include "kernels/route.h"

namespace anymps::kernels {

namespace {

// One of the generated files of kernels: all import the same arguments and constants.
namespace shader = shaders::reduction_0;
using shader::ReductionArgs;

// Bits of Constants::flags.
using shaders::reduction_load::kFixed, shaders::reduction_load::kLinear, shaders::reduction_load::kPlane,
    shaders::reduction_load::kSplit, shaders::reduction_load::kVectorC, shaders::reduction_load::kVectorS,
    shaders::reduction_load::kWide;

// One call: geometry, then the choice of a variant.
class Call {
  public:
    Call(const ReductionRow& row, Tensors ins, const DimMask& dims, Tensors outs, std::array<float, 4> params)
        : row_(row), inputs_(ins.size()) {
        TORCH_INTERNAL_ASSERT(ins.size() == row.inputs && outs.size() >= 1 && outs.size() <= 2);
        std::copy(ins.begin(), ins.end(), ins_.begin());
        std::copy(outs.begin(), outs.end(), outs_.begin());
        args_.params = params;
        for (size_t k = 0; k < inputs_; ++k) {
            TORCH_INTERNAL_ASSERT(ins_[k].sizes() == ins_[0].sizes());
            args_.in_address[k] = address(ins_[k]);
        }
        choose_kernels();
        find_extents(dims);
    }

    void launch();

    const at::TensorBase& in() const { return ins_[0]; }
    const at::TensorBase& out() const { return outs_[0]; }
    bool mean() const { return row_.mean; }

    void launch_generated(bool columns) {
        columns ? plan_columns() : plan_rows();
        const char* kernel = columns ? kernels_.columns : kernels_.rows;
        const uint32_t flags = vector_flags(columns ? kept_ : reduced_) | fixed_flag() | walk_flag();
        if (args_.chunks == 1) {
            dispatch(kernel, flags, {}, true, args_.row_groups);
            return;
        }
        const int64_t words = static_cast<int64_t>(args_.rows * args_.chunks) * kMaxWords;
        const at::TensorBase partials = at::detail::empty_mps(
            {words}, c10::ScalarType::Int, std::nullopt, c10::Device(c10::kMPS), std::nullopt, std::nullopt);
        args_.partials = address(partials);
        args_.row_stride = columns ? 1 : args_.chunks;
        args_.chunk_stride = columns ? static_cast<int64_t>(args_.rows) : 1;
        dispatch(kernel, flags | kSplit, partials, true, uint64_t{args_.row_groups} * args_.chunks);
        plan_partials();
        dispatch(kernels_.partials, 0, partials, false, args_.row_groups);
    }

  private:
    static constexpr int64_t kMaxWords = 4;  // of an accumulator

    void choose_kernels() {
        const at::TensorBase& by = row_.by_output ? *defined_out() : ins_[0];
        Compute compute = compute_of(by.scalar_type());
        if (compute == Compute::I32) compute = Compute::I64;
        kernels_ = row_.kernels[static_cast<size_t>(compute)];
        if (kernels_.rows != nullptr) config_ = launch_config_of(kernels_.rows);
        problem_.sums = row_.sums && compute == Compute::F32;
        problem_.means = row_.mean && compute_of(defined_out()->scalar_type()) == Compute::F32;
        const bool unordered = row_.ordered && by.scalar_type() == c10::ScalarType::UInt64;
        check_implemented(kernels_.rows != nullptr && !unordered, by.scalar_type(), row_.name);
    }

    const at::TensorBase* defined_out() const { return outs_[0].defined() ? &outs_[0] : &outs_[1]; }

    void find_extents(const DimMask& dims) {
        const int64_t ndim = ins_[0].dim();
        const bool keepdim = defined_out()->dim() == ndim;
        int64_t out_dim = defined_out()->dim();
        for (int64_t d = ndim - 1; d >= 0; --d) {
            Extent extent{ins_[0].size(d)};
            for (size_t k = 0; k < inputs_; ++k) extent.stride[k] = ins_[k].stride(d) * item_bytes(ins_[k]);
            if (!dims[d] || keepdim) --out_dim;
            if (!dims[d]) {
                for (size_t k = 0; k < 2; ++k) {
                    if (!outs_[k].defined()) continue;
                    extent.stride[kResultSlot + k] = outs_[k].stride(out_dim) * item_bytes(outs_[k]);
                }
            }
            (dims[d] ? args_.count : args_.rows) *= static_cast<uint64_t>(extent.size);
            if (extent.size != 1) (dims[d] ? reduced_ : kept_).push_back(extent);
        }
        for (size_t k = 0; k < 2; ++k) {
            if (outs_[k].defined()) args_.out_address[k] = address(outs_[k]);
        }
        collapse(kept_);
        collapse(reduced_, row_.indexed);
        TORCH_CHECK(!row_.indexed || args_.count <= std::numeric_limits<uint32_t>::max(), row_.name,
                    ": reductions with indices over more than 2^32 elements are not supported on MPS");
        problem_.type = ins_[0].scalar_type();
        problem_.address = args_.in_address[0];
        problem_.result_item = item_bytes(*defined_out());
        problem_.rows = args_.rows;
        problem_.count = args_.count;
    }

    // True when every input can be read four elements at a time along dims[0], or not at all (expanded). Such
    // loads are four times the code, which software drivers take long to compile.
    bool vectors(const Extents& along, const Extents& others, bool tail) const {
        if (launch_config().software) return false;
        if (along.empty() || along[0].size < 4 || (!tail && along[0].size % 4 != 0)) return false;
        for (size_t k = 0; k < inputs_; ++k) {
            if (along[0].stride[k] == 0 && k >= 2) continue;
            if (!vector_aligned(args_.in_address[k], item_bytes(ins_[k]), k, along, others)) return false;
        }
        return true;
    }

    // Which of the operands that may be expanded are read like the others.
    uint32_t vector_flags(const Extents& along) const {
        if (vector_ == 1) return 0;
        return (along[0].stride[2] != 0 ? kVectorC : 0u) | (along[0].stride[3] != 0 ? kVectorS : 0u);
    }

    // kFixed where the third and the fourth operand are the same for all elements of a result.
    uint32_t fixed_flag() const {
        const auto same = [](const Extent& e) { return e.stride[2] == 0 && e.stride[3] == 0; };
        return inputs_ > 2 && std::ranges::all_of(reduced_, same) ? kFixed : 0u;
    }

    // How positions are found among the reduced dimensions.
    uint32_t walk_flag() const {
        if (reduced_.size() <= 1) return kLinear;
        return reduced_.size() == 2 && args_.count <= std::numeric_limits<uint32_t>::max() ? kPlane : 0u;
    }

    void plan_rows() {
        const LaunchConfig& t = config_;
        vector_ = vectors(reduced_, kept_, reduced_.size() == 1) ? 4 : 1;
        const uint64_t loads = ceil_div(args_.count, vector_);
        lanes_ = t.software ? threads_per_row(t, args_.rows, loads) : lanes_of_rows(loads);
        args_.row_groups = group_count(ceil_div(args_.rows, t.workgroup / lanes_));
        split(lanes_ * vector_, lanes_ == t.workgroup && loads > t.workgroup);
    }

    // A row costs its threads more than its elements do, so many rows get few threads each.
    uint32_t lanes_of_rows(uint64_t loads) const {
        constexpr uint64_t kMaxOfLane = 64, kMin = 4;
        const vulkan::RowCosts& costs = route_device().costs();
        const LaunchConfig& t = config_;
        const uint32_t lanes = threads_per_row(t, args_.rows, loads);
        if (lanes == t.workgroup)
            return args_.rows >= costs.many_rows && loads <= kMaxOfLane * t.subgroup ? t.subgroup : lanes;
        if (args_.rows <= costs.very_many_rows) return lanes;
        const uint64_t few = std::max(ceil_div(loads, vector_ == 4 ? 8 : 16), kMin);
        return std::min(lanes, power_of_two(few, t.subgroup));
    }

    void plan_columns() {
        const LaunchConfig& t = config_;
        vector_ = vectors(kept_, reduced_, false) ? 4 : 1;
        lanes_ = threads_of_columns(ceil_div(args_.rows, vector_));
        args_.row_groups = group_count(ceil_div(args_.rows, uint64_t{lanes_} * vector_));
        split(t.workgroup / lanes_, true);
    }

    void plan_partials() {
        const LaunchConfig& t = config_;
        vector_ = 1;
        lanes_ = args_.chunks > 4 * t.subgroup ? t.workgroup : power_of_two(args_.chunks, t.subgroup);
        args_.row_groups = group_count(ceil_div(args_.rows, t.workgroup / lanes_));
    }

    // Divides the elements of a row among several workgroups where there are too few rows to fill the device.
    void split(uint64_t step, bool allowed) {
        const LaunchConfig& t = config_;
        const uint64_t rows_a_group = ceil_div(args_.rows, args_.row_groups);
        const uint64_t by_size = args_.count * rows_a_group / t.min_chunk;
        const uint64_t wanted = std::min(t.target_groups / args_.row_groups, by_size);
        args_.chunk = args_.count;
        if (!allowed || wanted < 2) return;
        args_.chunk = ceil_div(ceil_div(args_.count, wanted), step) * step;
        args_.chunks = static_cast<uint32_t>(ceil_div(args_.count, args_.chunk));
    }

    void dispatch(const char* kernel, uint32_t flags, const at::TensorBase& partials, bool first,
                  uint64_t groups) {
        constexpr uint64_t k32Bits = std::numeric_limits<uint32_t>::max();
        const bool wide =
            (kept_.size() > 1 && args_.rows > k32Bits) || (reduced_.size() > 1 && args_.count > k32Bits);
        args_.kept_dims = static_cast<uint32_t>(kept_.size());
        args_.reduced_dims = static_cast<uint32_t>(reduced_.size());
        struct {
            ReductionArgs args;
            std::array<Dim, kMaxDims - 1> rest;  // of args.dims
        } whole;
        whole.args = args_;
        const char* end =
            write_dims(reduced_, write_dims(kept_, reinterpret_cast<char*>(whole.args.dims.data())));
        const auto type = [](const at::TensorBase& t) { return t.defined() ? code(t.scalar_type()) : 0u; };
        auto call = shader::ReductionKernel{kernel}.call({.workgroup = config_.workgroup,
                                                          .subgroup = config_.subgroup,
                                                          .in_type = first ? type(ins_[0]) : 0,
                                                          .out_type = type(outs_[0]),
                                                          .out2_type = type(outs_[1]),
                                                          .lanes = lanes_,
                                                          .vector = vector_,
                                                          .flags = flags | (wide ? kWide : 0u),
                                                          .x_type = type(ins_[1]),
                                                          .c_type = type(ins_[2]),
                                                          .s_type = type(ins_[3]),
                                                          .prefetch = config_.prefetch_loads});
        if (first) {
            for (size_t k = 0; k < inputs_; ++k) call.read(ins_[k]);
        }
        const bool last = (flags & kSplit) == 0;
        if (last) call.write(outs_[0]).write(outs_[1]);
        if (partials.defined()) last ? call.read(partials) : call.write(partials);
        call.dispatch_prefix(whole.args, static_cast<size_t>(end - reinterpret_cast<const char*>(&whole)),
                             Grid::linear(groups));
    }

    const ReductionRow& row_;
    size_t inputs_;
    std::array<at::TensorBase, 4> ins_;
    std::array<at::TensorBase, 2> outs_;
    ReductionKernels kernels_;
    LaunchConfig config_ = launch_config();
    ReductionProblem problem_;
    ReductionArgs args_{.rows = 1, .count = 1, .chunks = 1, .row_groups = 1};
    Extents &kept_ = problem_.kept, &reduced_ = problem_.reduced;
    uint32_t lanes_ = 1;
    uint32_t vector_ = 1;
};

// Raises as the CPU does where results overlap themselves, and where several results overlap what is reduced.
// True for one result that overlaps it: rows would be written while others are still read.
bool needs_fresh_memory(Tensors ins, Tensors outs) {
    const bool several = std::ranges::count_if(outs, [](const auto& out) { return out.defined(); }) > 1;
    bool overlap = false;
    for (const at::TensorBase& out : outs) {
        if (!out.defined()) continue;
        at::assert_no_internal_overlap(out);
        for (const at::TensorBase& in : ins) {
            if (!out.is_alias_of(in)) continue;
            if (several) at::assert_no_overlap(out, in);
            overlap |= at::get_overlap_status(out, in) != at::MemOverlapStatus::No;
        }
    }
    return overlap;
}

at::Tensor fresh_memory(const at::TensorBase& like) {
    return like.defined() ? at::Tensor(at::detail::empty_mps(like.sizes(), like.options())) : at::Tensor();
}

int64_t item_of(const ReductionProblem& p) {
    return static_cast<int64_t>(c10::elementSize(p.type));
}

// Results that lie side by side, of dimensions that collapse to so many.
bool is_dense(const ReductionProblem& p, size_t reduced) {
    return p.kept.size() == 1 && p.reduced.size() == reduced &&
           p.kept[0].stride[kResultSlot] == p.result_item;
}

bool has_contiguous_columns(const ReductionProblem& p, const RouteDevice&) {
    if (p.kept.empty()) return false;
    if (p.reduced.empty()) return true;
    const int64_t kept = p.kept[0].stride[0], reduced = p.reduced[0].stride[0];
    return kept != 0 && kept < reduced;
}

Matrix matrix_of(const ReductionProblem& p) {
    return {p.type, p.address, p.count, p.rows, p.reduced[0].stride[0]};
}

Planes planes_of(const ReductionProblem& p) {
    return {static_cast<uint64_t>(p.reduced[1].size), p.rows, static_cast<uint64_t>(p.reduced[0].size)};
}

// Sums of floats in a matrix, as gradients of biases are.
bool are_sums_of_columns(const ReductionProblem& p, const RouteDevice& device) {
    return p.sums && is_dense(p, 1) && p.kept[0].stride[0] == item_of(p) &&
           has_contiguous_columns(p, device) && supports_reduce_outer(matrix_of(p), device);
}

// Of the channels of contiguous images.
bool are_sums_of_planes(const ReductionProblem& p, const RouteDevice& device) {
    const int64_t item = item_of(p);
    return p.sums && is_dense(p, 2) && p.reduced[0].stride[0] == item &&
           p.kept[0].stride[0] == p.reduced[0].size * item &&
           p.reduced[1].stride[0] == p.kept[0].size * p.kept[0].stride[0] &&
           supports_reduce_nc_hw(p.type, p.address, planes_of(p), device);
}

bool are_short_rows(const ReductionProblem& p, const RouteDevice& device) {
    const int64_t item = item_of(p);
    return (p.sums || p.means) && is_dense(p, 1) && p.reduced[0].stride[0] == item &&
           p.kept[0].stride[0] == p.reduced[0].size * item &&
           supports_reduce_small_inner(p.type, p.address, p.rows, p.count, device);
}

constexpr Route<ReductionProblem, Call> kRoutes[] = {
    {"reduce_outer", are_sums_of_columns,
     [](const ReductionProblem& p, Call& call) { reduce_outer(call.in(), matrix_of(p), call.out()); }},
    {"reduce_nc_hw", are_sums_of_planes,
     [](const ReductionProblem& p, Call& call) { reduce_nc_hw(call.in(), planes_of(p), call.out()); }},
    {"reduce_small_inner", are_short_rows,
     [](const ReductionProblem& p, Call& call) {
         reduce_small_inner(call.in(), call.out(), p.rows, p.count, call.mean());
     }},
    {"columns", has_contiguous_columns,
     [](const ReductionProblem&, Call& call) { call.launch_generated(true); }},
    {"rows", always, [](const ReductionProblem&, Call& call) { call.launch_generated(false); }},
};

void Call::launch() {
    if (args_.rows != 0) launch_first(row_.name, kRoutes, problem_, *this);
}

}  // namespace

std::string to_text(const ReductionProblem& p) {
    return c10::str(p.type, " ", p.rows, " of ", p.count);
}

const char* reduction_route(const ReductionProblem& problem, const RouteDevice& device) {
    return first_route(kRoutes, problem, device).name;
}

DimMask dim_mask(const at::TensorBase& self, at::OptionalIntArrayRef dims, bool empty_is_all) {
    const bool all = !dims || (dims->empty() && empty_is_all);
    return at::dim_list_to_bitset(all ? at::OptionalIntArrayRef(std::nullopt) : dims, self.dim());
}

DimMask dim_mask(const at::TensorBase& self, int64_t dim) {
    return dim_mask(self, at::IntArrayRef(dim));
}

DimMask dim_mask(const at::TensorBase& self, std::optional<int64_t> dim) {
    return dim ? dim_mask(self, *dim) : dim_mask(self, std::nullopt);
}

c10::SmallVector<int64_t, 6> reduced_shape(const at::TensorBase& self, const DimMask& dims, bool keepdim) {
    c10::SmallVector<int64_t, 6> shape;
    for (int64_t d = 0; d < self.dim(); ++d) {
        if (!dims[d])
            shape.push_back(self.size(d));
        else if (keepdim)
            shape.push_back(1);
    }
    return shape;
}

void reduce(const ReductionRow& row, Tensors ins, const DimMask& dims, Tensors outs,
            std::array<float, 4> params) {
    if (needs_fresh_memory(ins, outs)) {
        // Several raise there, so that one is defined, first or second.
        at::Tensor results[2];
        std::ranges::transform(outs, results, fresh_memory);
        outs.size() == 1 ? reduce(row, ins, dims, {results[0]}, params)
                         : reduce(row, ins, dims, {results[0], results[1]}, params);
        for (size_t k = 0; k < outs.size(); ++k)
            if (results[k].defined()) at::Tensor(outs.begin()[k]).copy_(results[k]);
        return;
    }
    const bool to_bool = row.to_bool != nullptr && outs.begin()->scalar_type() == c10::ScalarType::Bool;
    Call(to_bool ? *row.to_bool : row, ins, dims, outs, params).launch();
}

}  // namespace anymps::kernels
