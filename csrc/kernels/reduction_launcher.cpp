#include "kernels/reduction_launcher.h"

#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/mps/EmptyTensor.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "kernels/geometry.h"
#include "kernels/kernel_call.h"
#include "runtime/device.h"
#include "vulkan/instance.h"

namespace anymps::kernels {

namespace {

// The twins of Dim and ReductionArgs in shaders/lib/reduction.slang.
struct Dim {
    FastDivider divider;
    uint32_t size_high = 0;
    std::array<int64_t, 4> in_stride{};
    std::array<int64_t, 2> out_stride{};
};
static_assert(sizeof(Dim) == 64);

struct Header {
    std::array<uint64_t, 4> in{};
    std::array<uint64_t, 2> out{};
    uint64_t partials = 0;
    uint64_t rows = 1;
    uint64_t count = 1;
    uint64_t chunk = 0;
    int64_t row_stride = 0;
    int64_t chunk_stride = 0;
    std::array<float, 4> params{};
    uint32_t chunks = 1;
    uint32_t row_groups = 1;
    uint32_t kept_dims = 0;
    uint32_t reduced_dims = 0;
};
static_assert(sizeof(Header) == 128);

enum Flags : uint32_t { kSplit = 1, kWide = 2, kVectorC = 4, kVectorS = 8 };

struct Extent {
    int64_t size;
    std::array<int64_t, 4> in_stride;  // bytes
    std::array<int64_t, 2> out_stride;

    bool continues(const Extent& inner) const {
        const auto follows = [&](const auto& outer_strides, const auto& inner_strides) {
            for (size_t k = 0; k < outer_strides.size(); ++k) {
                if (outer_strides[k] != inner_strides[k] * inner.size) return false;
            }
            return true;
        };
        return follows(in_stride, inner.in_stride) && follows(out_stride, inner.out_stride);
    }
};
using Extents = c10::SmallVector<Extent, 8>;

// How much work is worth a workgroup, by kind of device.
struct Tuning {
    uint32_t workgroup;
    uint32_t subgroup;
    uint32_t columns;        // threads side by side, at most
    uint64_t target_groups;  // enough to fill the device
    uint64_t min_chunk;      // elements that a workgroup should see before a reduction is split further
};

const Tuning& tuning() {
    static const Tuning kTuning = [] {
        const auto& info = runtime::device_info();
        if (info.is_software) {  // no barriers: a workgroup is a subgroup
            return Tuning{info.subgroup_size, info.subgroup_size, info.subgroup_size, 64, 16384};
        }
        const uint32_t workgroup = std::min(256u, info.max_workgroup_size);
        return Tuning{workgroup, info.subgroup_size, 32, 1024, 8192};
    }();
    return kTuning;
}

uint64_t ceil_div(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

uint32_t power_of_two(uint64_t at_least, uint32_t at_most) {
    return static_cast<uint32_t>(std::bit_ceil(std::clamp<uint64_t>(at_least, 1, at_most)));
}

// Innermost first by memory (expanded dimensions last), neighbours merged where all strides allow.
void collapse(Extents& extents, bool keep_order) {
    const auto key = [](const Extent& e) {
        return e.in_stride[0] == 0 ? std::numeric_limits<int64_t>::max() : e.in_stride[0];
    };
    if (!keep_order) {
        std::stable_sort(extents.begin(), extents.end(),
                         [&](const Extent& a, const Extent& b) { return key(a) < key(b); });
    }
    size_t count = 0;
    for (const Extent& next : extents) {
        if (count > 0 && next.continues(extents[count - 1])) extents[count - 1].size *= next.size;
        else extents[count++] = next;
    }
    extents.resize(count);
}

// One call: geometry, then the choice of a variant.
class Call {
  public:
    Call(const ReductionRow& row, Tensors ins, const DimMask& dims, Tensors outs, std::array<float, 4> params)
        : row_(row), inputs_(ins.size()) {
        TORCH_INTERNAL_ASSERT(ins.size() == row.inputs && outs.size() >= 1 && outs.size() <= 2);
        std::copy(ins.begin(), ins.end(), ins_.begin());
        std::copy(outs.begin(), outs.end(), outs_.begin());
        header_.params = params;
        for (size_t k = 0; k < inputs_; ++k) {
            TORCH_INTERNAL_ASSERT(ins_[k].sizes() == ins_[0].sizes());
            header_.in[k] = address(ins_[k]);
        }
        choose_kernels();
        find_extents(dims);
    }

    void launch() {
        if (header_.rows == 0) return;
        const bool columns = columns_contiguous();
        columns ? plan_columns() : plan_rows();
        const char* kernel = columns ? kernels_.columns : kernels_.rows;
        const uint32_t flags = vector_flags(columns ? kept_ : reduced_);
        if (header_.chunks == 1) {
            dispatch(kernel, flags, {}, true, header_.row_groups);
            return;
        }
        const int64_t words = static_cast<int64_t>(header_.rows * header_.chunks) * kMaxWords;
        const at::TensorBase partials = at::detail::empty_mps({words}, c10::ScalarType::Int, std::nullopt,
                                                              c10::Device(c10::kMPS), std::nullopt, std::nullopt);
        header_.partials = address(partials);
        header_.row_stride = columns ? 1 : header_.chunks;
        header_.chunk_stride = columns ? static_cast<int64_t>(header_.rows) : 1;
        dispatch(kernel, flags | kSplit, partials, true, uint64_t{header_.row_groups} * header_.chunks);
        plan_partials();
        dispatch(kernels_.partials, 0, partials, false, header_.row_groups);
    }

  private:
    static constexpr int64_t kMaxWords = 4;  // of an accumulator

    void choose_kernels() {
        const at::TensorBase& by = row_.by_output ? *defined_out() : ins_[0];
        Compute compute = compute_of(by.scalar_type());
        if (compute == Compute::I32) compute = Compute::I64;
        kernels_ = row_.kernels[static_cast<size_t>(compute)];
        const bool unordered = row_.ordered && by.scalar_type() == c10::ScalarType::UInt64;
        TORCH_CHECK_NOT_IMPLEMENTED(kernels_.rows != nullptr && !unordered, "\"", row_.name, "\" not implemented for '",
                                    c10::toString(by.scalar_type()), "'");
    }

    const at::TensorBase* defined_out() const { return outs_[0].defined() ? &outs_[0] : &outs_[1]; }

    static int64_t item(const at::TensorBase& tensor) { return static_cast<int64_t>(tensor.element_size()); }

    void find_extents(const DimMask& dims) {
        const int64_t ndim = ins_[0].dim();
        const bool keepdim = defined_out()->dim() == ndim;
        int64_t out_dim = defined_out()->dim();
        for (int64_t d = ndim - 1; d >= 0; --d) {
            Extent extent{ins_[0].size(d), {}, {}};
            for (size_t k = 0; k < inputs_; ++k) extent.in_stride[k] = ins_[k].stride(d) * item(ins_[k]);
            if (!dims[d] || keepdim) --out_dim;
            if (!dims[d]) {
                for (size_t k = 0; k < 2; ++k) {
                    if (!outs_[k].defined()) continue;
                    extent.out_stride[k] = outs_[k].stride(out_dim) * item(outs_[k]);
                }
            }
            (dims[d] ? header_.count : header_.rows) *= static_cast<uint64_t>(extent.size);
            if (extent.size != 1) (dims[d] ? reduced_ : kept_).push_back(extent);
        }
        for (size_t k = 0; k < 2; ++k) {
            if (outs_[k].defined()) header_.out[k] = address(outs_[k]);
        }
        collapse(kept_, false);
        collapse(reduced_, row_.indexed);
        TORCH_CHECK(!row_.indexed || header_.count <= std::numeric_limits<uint32_t>::max(), row_.name,
                    ": reductions with indices over more than 2^32 elements are not supported on MPS");
    }

    bool columns_contiguous() const {
        if (kept_.empty()) return false;
        if (reduced_.empty()) return true;
        const int64_t kept = kept_[0].in_stride[0], reduced = reduced_[0].in_stride[0];
        return kept != 0 && kept < reduced;
    }

    // True when every input can be read four elements at a time along dims[0], or not at all (expanded).
    bool vectors(const Extents& along, const Extents& others, bool tail) const {
        if (along.empty() || along[0].size < 4 || (!tail && along[0].size % 4 != 0)) return false;
        for (size_t k = 0; k < inputs_; ++k) {
            const int64_t stride = along[0].in_stride[k];
            if (stride == 0 && k >= 2) continue;
            const int64_t alignment = std::min<int64_t>(16, 4 * item(ins_[k]));
            const auto aligned = [&](const Extent& e) { return e.in_stride[k] % alignment == 0; };
            if (stride != item(ins_[k]) || header_.in[k] % alignment != 0 ||
                !std::all_of(along.begin() + 1, along.end(), aligned) ||
                !std::all_of(others.begin(), others.end(), aligned)) {
                return false;
            }
        }
        return true;
    }

    // Which of the operands that may be expanded are read like the others.
    uint32_t vector_flags(const Extents& along) const {
        if (vector_ == 1) return 0;
        return (along[0].in_stride[2] != 0 ? kVectorC : 0u) | (along[0].in_stride[3] != 0 ? kVectorS : 0u);
    }

    void plan_rows() {
        const Tuning& t = tuning();
        vector_ = vectors(reduced_, kept_, reduced_.size() == 1) ? 4 : 1;
        const uint64_t loads = ceil_div(header_.count, vector_);
        const bool few_rows = header_.rows * t.subgroup < uint64_t{64} * t.workgroup;
        const bool whole = loads > uint64_t{t.subgroup} * 16 || (few_rows && loads > t.workgroup);
        lanes_ = whole ? t.workgroup : power_of_two(ceil_div(loads, 2), t.subgroup);
        header_.row_groups = groups(ceil_div(header_.rows, t.workgroup / lanes_));
        split(lanes_ * vector_, whole && loads > t.workgroup);
    }

    void plan_columns() {
        const Tuning& t = tuning();
        vector_ = vectors(kept_, reduced_, false) ? 4 : 1;
        lanes_ = power_of_two(ceil_div(header_.rows, vector_), t.columns);
        if (runtime::device_info().is_software) lanes_ = t.workgroup;
        header_.row_groups = groups(ceil_div(header_.rows, uint64_t{lanes_} * vector_));
        split(t.workgroup / lanes_, true);
    }

    void plan_partials() {
        const Tuning& t = tuning();
        vector_ = 1;
        lanes_ = header_.chunks > 4 * t.subgroup ? t.workgroup : power_of_two(header_.chunks, t.subgroup);
        header_.row_groups = groups(ceil_div(header_.rows, t.workgroup / lanes_));
    }

    // Divides the elements of a row among several workgroups where there are too few rows to fill the device.
    void split(uint64_t step, bool allowed) {
        const Tuning& t = tuning();
        const uint64_t rows_a_group = ceil_div(header_.rows, header_.row_groups);
        const uint64_t by_size = header_.count * rows_a_group / t.min_chunk;
        const uint64_t wanted = std::min(t.target_groups / header_.row_groups, by_size);
        header_.chunk = header_.count;
        if (!allowed || wanted < 2) return;
        header_.chunk = ceil_div(ceil_div(header_.count, wanted), step) * step;
        header_.chunks = static_cast<uint32_t>(ceil_div(header_.count, header_.chunk));
    }

    static uint32_t groups(uint64_t count) {
        TORCH_CHECK(count <= std::numeric_limits<uint32_t>::max(), "reduction: ", count,
                    " workgroups are more than 2^32");
        return static_cast<uint32_t>(count);
    }

    void dispatch(const char* kernel, uint32_t flags, const at::TensorBase& partials, bool first, uint64_t groups) {
        constexpr uint64_t k32Bits = std::numeric_limits<uint32_t>::max();
        const bool wide = (kept_.size() > 1 && header_.rows > k32Bits) || (reduced_.size() > 1 && header_.count > k32Bits);
        header_.kept_dims = static_cast<uint32_t>(kept_.size());
        header_.reduced_dims = static_cast<uint32_t>(reduced_.size());
        std::array<char, sizeof(Header) + kMaxDims * sizeof(Dim)> args;
        std::memcpy(args.data(), &header_, sizeof(Header));
        char* at = write_dims(kept_, args.data() + sizeof(Header));
        at = write_dims(reduced_, at);
        const auto type = [](const at::TensorBase& t) { return t.defined() ? code(t.scalar_type()) : 0u; };
        const uint32_t in_type = first ? type(ins_[0]) : 0;
        KernelCall call(kernel, {tuning().workgroup, tuning().subgroup, in_type, type(outs_[0]), type(outs_[1]), lanes_,
                                 vector_, flags | (wide ? kWide : 0u), type(ins_[1]), type(ins_[2]), type(ins_[3])});
        if (first) {
            for (size_t k = 0; k < inputs_; ++k) call.read(ins_[k]);
        }
        const bool last = (flags & kSplit) == 0;
        if (last) call.write(outs_[0]).write(outs_[1]);
        if (partials.defined()) last ? call.read(partials) : call.write(partials);
        call.dispatch_pointer(args.data(), static_cast<size_t>(at - args.data()), Grid::linear(groups));
    }

    static char* write_dims(const Extents& extents, char* at) {
        for (const Extent& e : extents) {
            Dim dim;
            dim.divider = FastDivider(static_cast<uint32_t>(e.size));
            dim.divider.divisor = static_cast<uint32_t>(e.size);
            dim.size_high = static_cast<uint32_t>(static_cast<uint64_t>(e.size) >> 32);
            dim.in_stride = e.in_stride;
            dim.out_stride = e.out_stride;
            std::memcpy(at, &dim, sizeof(Dim));
            at += sizeof(Dim);
        }
        return at;
    }

    const ReductionRow& row_;
    size_t inputs_;
    std::array<at::TensorBase, 4> ins_;
    std::array<at::TensorBase, 2> outs_;
    ReductionKernels kernels_;
    Header header_;
    Extents kept_, reduced_;
    uint32_t lanes_ = 1;
    uint32_t vector_ = 1;
};

}  // namespace

DimMask dim_mask(const at::TensorBase& self, at::OptionalIntArrayRef dims, bool empty_is_all) {
    const bool all = !dims || (dims->empty() && empty_is_all);
    return at::dim_list_to_bitset(all ? at::OptionalIntArrayRef(std::nullopt) : dims, self.dim());
}

DimMask dim_mask(const at::TensorBase& self, int64_t dim) { return dim_mask(self, at::IntArrayRef(dim)); }

DimMask dim_mask(const at::TensorBase& self, std::optional<int64_t> dim) {
    return dim ? dim_mask(self, *dim) : dim_mask(self, std::nullopt);
}

c10::SmallVector<int64_t, 6> reduced_shape(const at::TensorBase& self, const DimMask& dims, bool keepdim) {
    c10::SmallVector<int64_t, 6> shape;
    for (int64_t d = 0; d < self.dim(); ++d) {
        if (!dims[d]) shape.push_back(self.size(d));
        else if (keepdim) shape.push_back(1);
    }
    return shape;
}

void reduce(const ReductionRow& row, Tensors ins, const DimMask& dims, Tensors outs, std::array<float, 4> params) {
    const bool to_bool = row.to_bool != nullptr && outs.begin()->scalar_type() == c10::ScalarType::Bool;
    Call(to_bool ? *row.to_bool : row, ins, dims, outs, params).launch();
}

}  // namespace anymps::kernels
