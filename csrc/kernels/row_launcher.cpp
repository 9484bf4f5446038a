#include "kernels/row_launcher.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/extents.h"
#include "kernels/kernel_call.h"
#include "kernels/team.h"

namespace anymps::kernels {

namespace {

// The twin of RowArgs in shaders/lib/team.slang, before its dimensions.
struct Header {
    std::array<uint64_t, kMaxSlots> address{};
    std::array<int64_t, kMaxSlots> stride{};
    std::array<float, 4> params{};
    uint32_t rows = 1;
    uint32_t size = 1;
    uint32_t dims = 0;
    uint32_t unused = 0;
};
static_assert(sizeof(Header) == 128);

constexpr uint64_t kMostCached = 8;  // loads of a row that a thread keeps in registers

uint32_t checked(int64_t count) {
    TORCH_CHECK(count <= std::numeric_limits<uint32_t>::max(), "rows or elements of a row number ", count,
                ", and kernels of the MPS backend that walk rows count to 2^32 - 1");
    return static_cast<uint32_t>(count);
}

}  // namespace

void launch_rows(std::string_view kernel, int64_t dim, std::initializer_list<RowTensor> tensors,
                 std::array<float, 4> params, std::initializer_list<uint32_t> specialization) {
    const at::TensorBase& shape = tensors.begin()->tensor;
    if (shape.numel() == 0) return;
    Header header;
    header.params = params;
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
    bool vector = !columns && header.size % 4 == 0 && !tuning().software;
    c10::SmallVector<uint32_t, 16> constants(12, 0);
    for (size_t k = 0; k < tensors.size(); ++k) {
        const auto& [tensor, use, one_a_row] = tensors.begin()[k];
        if (!tensor.defined()) continue;
        header.address[k] = address(tensor);
        constants[2 + k] = code(tensor.scalar_type());
        vector &= one_a_row || vector_aligned(header.address[k], item_bytes(tensor), k, along, kept);
    }
    const Tuning& t = tuning();
    const uint32_t width = vector ? 4 : 1;
    const uint64_t loads = header.size / width;
    const uint32_t lanes = columns ? lanes_of_columns(header.rows) : lanes_a_row(header.rows, loads);
    const uint64_t a_thread = ceil_div(loads, columns ? t.workgroup / lanes : lanes);
    constants[0] = t.workgroup;
    constants[1] = t.subgroup;
    constants[8] = lanes;
    constants[9] = width;
    constants[10] = columns;
    constants[11] = t.software || a_thread > kMostCached ? 0 : static_cast<uint32_t>(a_thread);
    constants.append(specialization.begin(), specialization.end());

    std::array<char, sizeof(Header) + kMaxDims * sizeof(Dim)> args;
    std::memcpy(args.data(), &header, sizeof(Header));
    const char* end = write_dims(kept, args.data() + sizeof(Header));
    KernelCall call(kernel_id(kernel), constants);
    for (const auto& [tensor, use, one_a_row] : tensors) {
        use == RowTensor::kWrite ? call.write(tensor) : call.read(tensor);
    }
    const uint64_t groups = ceil_div(header.rows, columns ? lanes : t.workgroup / lanes);
    call.dispatch_pointer(args.data(), static_cast<size_t>(end - args.data()), Grid::linear(groups));
}

}  // namespace anymps::kernels
