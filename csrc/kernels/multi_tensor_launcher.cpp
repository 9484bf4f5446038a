#include "kernels/multi_tensor_launcher.h"
#include "kernels/flat_grid.h"

#include <map>

#include "runtime/device.h"

namespace anymps::kernels {
namespace {

constexpr uint64_t kMostElements = 1ull << 30;  // of one entry: kernels count in 32 bits
constexpr size_t kMostTableBytes = 192 << 10;   // of one dispatch, in the argument ring

uint64_t first_word(const TensorListUse& list, size_t row) {
    if (!list.words.empty()) return list.words[row];
    return list.tensors.empty() ? 0 : address(list.tensors[row]);
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

MultiTensorLauncher::MultiTensorLauncher(std::string kernel, std::vector<TensorListUse> lists, size_t typed)
    : kernel_(std::move(kernel)), lists_(std::move(lists)) {
    specialize_ = [this, typed](size_t row) {
        std::vector<uint32_t> types;
        for (size_t l = 0; l < typed; ++l) {
            const auto& list = lists_[l].tensors;
            types.push_back(code(list.empty() ? at::kFloat : list[row].scalar_type()));
        }
        return types;
    };
}

uint32_t MultiTensorLauncher::group_elements() {
    return flat_workgroup() * (runtime::device().info().is_software ? 128 : 16);
}

void MultiTensorLauncher::dispatch_bytes(const void* args, size_t bytes) {
    std::map<std::vector<uint32_t>, std::vector<size_t>> groups;
    for (size_t row = 0; row < lists_[0].tensors.size(); ++row) {
        if (lists_[0].tensors[row].numel() == 0) continue;
        groups[specialize_(row)].push_back(row);
    }
    const size_t most_rows = kMostTableBytes / (8 * (lists_.size() + 1));
    for (const auto& [constants, rows] : groups) {
        for (size_t begin = 0; begin < rows.size(); begin += most_rows) {
            dispatch_rows({rows.begin() + begin, rows.begin() + std::min(rows.size(), begin + most_rows)},
                          constants, args, bytes);
        }
    }
}

void MultiTensorLauncher::dispatch_rows(const std::vector<size_t>& rows,
                                        const std::vector<uint32_t>& constants, const void* args,
                                        size_t bytes) {
    MultiTensor header;
    header.lists = static_cast<uint32_t>(lists_.size());
    header.group_elements = group_elements();

    std::vector<uint32_t> specialization = {flat_workgroup(), runtime::device().info().subgroup_size};
    specialization.insert(specialization.end(), constants.begin(), constants.end());
    KernelCall call(kernel_id(kernel_), specialization);
    for (const at::Tensor& t : reads_) call.read(t);
    for (const at::Tensor& t : writes_) call.write(t);

    std::vector<uint64_t> table;
    for (const size_t row : rows) {
        const auto elements = static_cast<uint64_t>(lists_[0].tensors[row].numel());
        for (uint64_t done = 0; done < elements; done += kMostElements) {
            const uint64_t part = std::min(kMostElements, elements - done);
            for (const TensorListUse& list : lists_) {
                uint64_t at = first_word(list, row);
                if (!list.tensors.empty() && list.dense) at += done * list.tensors[row].element_size();
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
