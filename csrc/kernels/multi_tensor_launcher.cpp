#include "kernels/multi_tensor_launcher.h"
#include "kernels/flat_grid.h"

#include <algorithm>
#include <utility>

#include "runtime/device.h"

namespace anymps::kernels {
namespace {

constexpr uint64_t kMaxElements = 1ull << 30;  // of one entry: kernels count in 32 bits
constexpr size_t kMaxTableBytes = 192 << 10;   // of one dispatch, in the argument ring

// In MultiTensor::lists: workgroups look up their entries, as long as they are not too many for the argument
// ring.
constexpr uint32_t kDirect = 1u << 31;
constexpr uint32_t kMaxDirectGroups = 12 << 10;

// The entry of every workgroup, two to a word.
void append_entries(std::vector<uint64_t>& table, const MultiTensor& header) {
    const size_t words = table.size() / header.entries, end = table.size();
    std::vector<uint32_t> entries(header.groups + header.groups % 2);
    for (uint32_t e = 0; e < header.entries; ++e) {
        const auto first = static_cast<uint32_t>(table[(e + 1) * words - 1] >> 32);
        const auto next =
            e + 1 < header.entries ? static_cast<uint32_t>(table[(e + 2) * words - 1] >> 32) : header.groups;
        std::fill(entries.begin() + first, entries.begin() + next, e);
    }
    table.resize(end + entries.size() / 2);
    std::memcpy(table.data() + end, entries.data(), entries.size() * sizeof(uint32_t));
}

uint64_t first_word(const TensorListUse& list, size_t row) {
    if (!list.words.empty()) return list.words[row];
    return list.tensors.empty() ? 0 : address(list.tensors[row]);
}

}  // namespace

MultiTensorLauncher& MultiTensorLauncher::read(const at::Tensor& tensor) {
    if (tensor.defined()) reads_.push_back(tensor);
    return *this;
}

MultiTensorLauncher& MultiTensorLauncher::write(const at::Tensor& tensor) {
    if (tensor.defined()) writes_.push_back(tensor);
    return *this;
}

uint32_t MultiTensorLauncher::group_elements() {
    return flat_workgroup() * (runtime::device().info().is_software ? 128 : 32);
}

void MultiTensorLauncher::dispatch_bytes(const void* args, size_t bytes) {
    // There are few groups, and a row is mostly of the same one as the row before.
    std::vector<std::pair<Constants, std::vector<size_t>>> groups;
    const size_t count = lists_[0].tensors.size();
    size_t last = 0, before = count;
    for (size_t row = 0; row < count; ++row) {
        if (lists_[0].tensors[row].numel() == 0) continue;
        if (before == count || !same_types(row, before)) {
            const Constants constants = specialize_(row);
            for (last = 0; last < groups.size() && groups[last].first != constants;) ++last;
            if (last == groups.size()) {
                groups.push_back({constants, {}});
                groups.back().second.reserve(count);
            }
        }
        groups[last].second.push_back(row);
        before = row;
    }
    const size_t most_rows = kMaxTableBytes / (8 * (lists_.size() + 1));
    for (const auto& [constants, rows] : groups) {
        for (size_t begin = 0; begin < rows.size(); begin += most_rows) {
            const auto chunk = std::span(rows).subspan(begin, std::min(rows.size() - begin, most_rows));
            dispatch_rows(chunk, constants, args, bytes);
        }
    }
}

bool MultiTensorLauncher::same_types(size_t row, size_t other) const {
    for (const TensorListUse& list : lists_) {
        if (!list.tensors.empty() && list.tensors[row].dtype() != list.tensors[other].dtype()) return false;
    }
    return true;
}

bool MultiTensorLauncher::in_place(const TensorListUse& list, size_t row) const {
    const TensorListUse& first = lists_[0];
    return &list != &first && first.write && !first.tensors.empty() &&
           list.tensors[row].unsafeGetTensorImpl() == first.tensors[row].unsafeGetTensorImpl();
}

void MultiTensorLauncher::dispatch_rows(std::span<const size_t> rows, const Constants& constants,
                                        const void* args, size_t bytes) {
    MultiTensor header{};
    header.group_elements = group_elements();

    Constants specialization = {flat_workgroup(), runtime::device().info().subgroup_size};
    specialization.append(constants.begin(), constants.end());
    KernelCall call(kernel_id(kernel_), specialization);
    for (const at::Tensor& t : reads_) call.read(t);
    for (const at::Tensor& t : writes_) call.write(t);

    std::vector<uint64_t> table;
    table.reserve(rows.size() * (lists_.size() + 1));
    for (const size_t row : rows) {
        const auto elements = static_cast<uint64_t>(lists_[0].tensors[row].numel());
        for (uint64_t done = 0; done < elements; done += kMaxElements) {
            const uint64_t chunk = std::min(kMaxElements, elements - done);
            for (const TensorListUse& list : lists_) {
                uint64_t at = first_word(list, row);
                if (!list.tensors.empty() && list.dense) at += done * list.tensors[row].element_size();
                table.push_back(at);
            }
            table.push_back(chunk | static_cast<uint64_t>(header.groups) << 32);
            header.groups +=
                static_cast<uint32_t>((chunk + header.group_elements - 1) / header.group_elements);
            ++header.entries;
        }
        for (const TensorListUse& list : lists_) {
            if (list.tensors.empty() || in_place(list, row)) continue;
            list.write ? call.write(list.tensors[row]) : call.read(list.tensors[row]);
        }
    }
    header.lists = static_cast<uint32_t>(lists_.size());
    if (header.groups <= kMaxDirectGroups) {
        header.lists |= kDirect;
        append_entries(table, header);
    }
    std::vector<std::byte> whole(bytes + table.size() * 8);
    std::memcpy(whole.data(), args, bytes);
    std::memcpy(whole.data(), &header, sizeof(header));
    std::memcpy(whole.data() + bytes, table.data(), table.size() * 8);
    call.dispatch_pointer(whole.data(), whole.size(), Grid::linear(header.groups));
}

}  // namespace anymps::kernels
