#include "kernels/multi_tensor_launcher.h"
#include "kernels/flat_grid.h"

#include <map>

#include "runtime/device.h"

namespace anymps::kernels {
namespace {

constexpr uint64_t kMostElements = 1ull << 30;  // of one entry: kernels count in 32 bits
constexpr size_t kMostTableBytes = 192 << 10;   // of one dispatch, in the argument ring

uint64_t first_address(const at::TensorList& list, size_t row) {
    return list.empty() ? 0 : address(list[row]);
}

}  // namespace

bool same_dense_layout(at::TensorList tensors) {
    const at::Tensor& first = tensors.front();
    if (!first.is_non_overlapping_and_dense()) return false;
    for (const at::Tensor& t : tensors) {
        if (t.defined() && (t.sizes() != first.sizes() || t.strides() != first.strides())) return false;
    }
    return true;
}

MultiTensorLauncher& MultiTensorLauncher::read(const at::Tensor& tensor) {
    if (tensor.defined()) reads_.push_back(tensor);
    return *this;
}

MultiTensorLauncher& MultiTensorLauncher::write(const at::Tensor& tensor) {
    if (tensor.defined()) writes_.push_back(tensor);
    return *this;
}

void MultiTensorLauncher::dispatch_bytes(const void* args, size_t bytes) {
    std::map<std::vector<uint32_t>, std::vector<size_t>> groups;
    for (size_t row = 0; row < lists_[0].tensors.size(); ++row) {
        if (lists_[0].tensors[row].numel() == 0) continue;
        std::vector<uint32_t> types;
        for (size_t l = 0; l < typed_; ++l) {
            types.push_back(lists_[l].tensors.empty() ? code(at::kFloat)
                                                      : code(lists_[l].tensors[row].scalar_type()));
        }
        groups[types].push_back(row);
    }
    const size_t most_rows = kMostTableBytes / (8 * (lists_.size() + 1));
    for (const auto& [types, rows] : groups) {
        for (size_t begin = 0; begin < rows.size(); begin += most_rows) {
            dispatch_rows({rows.begin() + begin, rows.begin() + std::min(rows.size(), begin + most_rows)},
                          args, bytes);
        }
    }
}

void MultiTensorLauncher::dispatch_rows(const std::vector<size_t>& rows, const void* args, size_t bytes) {
    const auto& info = runtime::device().info();
    const uint32_t workgroup = flat_workgroup();
    MultiTensor header;
    header.lists = static_cast<uint32_t>(lists_.size());
    header.group_elements = workgroup * (info.is_software ? 128 : 16);

    std::vector<uint32_t> specialization = {workgroup, 0};  // any subgroup size
    for (size_t l = 0; l < typed_; ++l) {
        const auto& list = lists_[l].tensors;
        specialization.push_back(list.empty() ? code(at::kFloat) : code(list[rows.front()].scalar_type()));
    }
    KernelCall call(kernel_id(kernel_), specialization);
    for (const at::Tensor& t : reads_) call.read(t);
    for (const at::Tensor& t : writes_) call.write(t);

    std::vector<uint64_t> table;
    for (const size_t row : rows) {
        const auto elements = static_cast<uint64_t>(lists_[0].tensors[row].numel());
        for (uint64_t done = 0; done < elements; done += kMostElements) {
            const uint64_t part = std::min(kMostElements, elements - done);
            for (const TensorListUse& list : lists_) {
                uint64_t at = first_address(list.tensors, row);
                if (at != 0 && list.dense) at += done * list.tensors[row].element_size();
                table.push_back(at);
            }
            table.push_back(part | static_cast<uint64_t>(header.groups) << 32);
            header.groups +=
                static_cast<uint32_t>((part + header.group_elements - 1) / header.group_elements);
            ++header.entries;
        }
        for (const TensorListUse& list : lists_) {
            if (list.tensors.empty()) continue;
            list.write ? call.write(list.tensors[row]) : call.read(list.tensors[row]);
        }
    }
    std::vector<std::byte> whole(bytes + table.size() * 8);
    std::memcpy(whole.data(), args, bytes);
    std::memcpy(whole.data(), &header, sizeof(header));
    std::memcpy(whole.data() + bytes, table.data(), table.size() * 8);
    call.dispatch_pointer(whole.data(), whole.size(), Grid::linear(header.groups));
}

}  // namespace anymps::kernels
