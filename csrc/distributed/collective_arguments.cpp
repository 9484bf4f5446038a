#include "distributed/collective_arguments.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace anymps::distributed {

void check(const char* name, const Tensor& tensor) {
    TORCH_CHECK(tensor.is_mps(), name, ": expected all tensors on mps, but found one on ", tensor.device());
    TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kStrided, name,
                                " on mps takes dense tensors only, not ", tensor.layout());
}

void check(const char* name, const Tensors& tensors) {
    for (const auto& tensor : tensors) check(name, tensor);
}

const Tensor& single(const char* name, const Tensors& tensors) {
    TORCH_CHECK(tensors.size() == 1, name, ": expected one tensor a rank, got ", tensors.size());
    check(name, tensors[0]);
    return tensors[0];
}

void check_ranks(const char* name, const Tensors& tensors, int ranks) {
    TORCH_CHECK(tensors.size() == static_cast<size_t>(ranks), name, ": expected a list of ", ranks,
                " tensors, one a rank, got ", tensors.size());
    check(name, tensors);
}

void check_dtypes(const char* name, const Tensor& a, const Tensor& b) {
    TORCH_CHECK_TYPE(a.scalar_type() == b.scalar_type(), name,
                     ": output tensor must have the same type as input tensor, got ", a.scalar_type(),
                     " and ", b.scalar_type());
}

void check_root(const char* name, int64_t root, int ranks) {
    TORCH_CHECK(root >= 0 && root < ranks, name, ": invalid root rank: ", root, " of ", ranks, " ranks");
}

Tensors all_bytes(const Tensors& host, size_t first, size_t count) {
    Tensors result;
    for (size_t i = first; i < first + count; ++i) result.push_back(bytes_of(host[i]));
    return result;
}

std::vector<HostArgument> arguments_of(const Tensors& tensors, Access access) {
    std::vector<HostArgument> list;
    for (const auto& tensor : tensors) list.emplace_back(tensor, access);
    return list;
}

Part whole(int argument, const Tensor& tensor) {
    return {argument, 0, tensor.nbytes()};
}

std::vector<Part> each(int first, const Tensors& tensors) {
    std::vector<Part> parts;
    for (const auto& tensor : tensors) parts.push_back(whole(first + static_cast<int>(parts.size()), tensor));
    return parts;
}

std::vector<Part> split(int argument, const std::vector<int64_t>& bytes) {
    std::vector<Part> parts;
    size_t offset = 0;
    for (const int64_t count : bytes) {
        parts.push_back({argument, offset, static_cast<size_t>(count)});
        offset += count;
    }
    return parts;
}

std::vector<Part> split_equally(int argument, const Tensor& tensor, int ranks) {
    return split(argument, std::vector<int64_t>(ranks, static_cast<int64_t>(tensor.nbytes()) / ranks));
}

std::vector<Part> only(int rank, int ranks, Part part) {
    std::vector<Part> parts(ranks);
    parts[rank] = part;
    return parts;
}

size_t largest(const std::vector<Part>& parts) {
    size_t bytes = 0;
    for (const Part& part : parts) bytes = std::max(bytes, part.bytes);
    return bytes;
}

Tensor flat(const Tensors& tensors) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    Tensors parts;
    for (const auto& tensor : tensors) parts.push_back(tensor.reshape({-1}));
    return parts.size() == 1 ? parts[0] : at::cat(parts);
}

}  // namespace anymps::distributed
