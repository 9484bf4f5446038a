#include "kernels/row_launcher.h"

#include <limits>

#include "kernels/launch_config.h"

namespace anymps::kernels {

namespace {

constexpr uint64_t kMaxCached = 8;  // loads of a row that a thread keeps in registers

uint32_t checked(int64_t count) {
    TORCH_CHECK(count <= std::numeric_limits<uint32_t>::max(), "rows or elements of a row number ", count,
                ", and kernels of the MPS backend that walk rows count to 2^32 - 1");
    return static_cast<uint32_t>(count);
}

}  // namespace

RowLaunch::RowLaunch(int64_t dim, std::initializer_list<RowTensor> tensors, std::array<float, 4> params) {
    const at::TensorBase& shape = tensors.begin()->tensor;
    shaders::team::RowArgs& header = args_.header;
    header = {};
    header.params = params;
    header.size = 1;
    Extents kept, along{{1}};
    int64_t rows = 1;
    for (int64_t d = shape.dim() - 1; d >= 0; --d) {
        Extent extent{shape.size(d)};
        for (size_t k = 0; k < tensors.size(); ++k) {
            const at::TensorBase& tensor = tensors.begin()[k].tensor;
            if (tensor.defined()) extent.stride[k] = tensor.stride(d) * item_bytes(tensor);
        }
        if (d == dim) {
            along[0] = extent;
            header.stride = extent.stride;
            header.size = checked(extent.size);
        } else {
            rows *= extent.size;
            if (extent.size != 1) kept.push_back(extent);
        }
    }
    collapse(kept);
    header.rows = checked(rows);
    header.dims = static_cast<uint32_t>(kept.size());

    // Side by side: neighbours in a row, or neighbouring rows where those lie closer together.
    const int64_t row_step = kept.empty() ? 0 : kept[0].stride[0];
    const bool columns = row_step != 0 && header.size > 1 && row_step < along[0].stride[0];
    // Four elements a load are four times the code, which software drivers take long to compile.
    bool vector = !columns && header.size % 4 == 0 && !launch_config().software;
    for (size_t k = 0; k < tensors.size(); ++k) {
        const auto& [tensor, use, one_a_row] = tensors.begin()[k];
        if (!tensor.defined()) continue;
        header.address[k] = address(tensor);
        type_[k] = code(tensor.scalar_type());
        vector &= one_a_row || vector_aligned(header.address[k], item_bytes(tensor), k, along, kept);
    }
    const LaunchConfig& t = launch_config();
    workgroup_ = t.workgroup;
    subgroup_ = t.subgroup;
    vector_ = vector ? 4 : 1;
    columns_ = columns;
    const uint64_t loads = header.size / vector_;
    lanes_ = columns ? threads_of_columns(header.rows) : threads_per_row(header.rows, loads);
    const uint64_t a_thread = ceil_div(loads, columns ? t.workgroup / lanes_ : lanes_);
    cached_ = t.software || a_thread > kMaxCached ? 0 : static_cast<uint32_t>(a_thread);
    groups_ = ceil_div(header.rows, columns ? lanes_ : t.workgroup / lanes_);
    write_dims(kept, reinterpret_cast<char*>(header.kept.data()));
}

void RowLaunch::dispatch(Call call, std::initializer_list<RowTensor> tensors) const {
    for (const auto& [tensor, use, one_a_row] : tensors) {
        use == RowTensor::kWrite ? call.write(tensor) : call.read(tensor);
    }
    const shaders::team::RowArgs& header = args_.header;
    call.dispatch_prefix(header, offsetof(shaders::team::RowArgs, kept) + header.dims * sizeof(Dim),
                         Grid::linear(groups_));
}

}  // namespace anymps::kernels
