// What collectives ask of their arguments, and which parts of them go to which rank.
#pragma once

#include <vector>

#include "distributed/host_argument.h"
#include "distributed/schedule.h"

namespace anymps::distributed {

// Checks of a collective, by the name that users have for it; they raise PyTorch's errors.
void check(const char* name, const Tensor& tensor);                     // dense, on mps
void check(const char* name, const Tensors& tensors);                   // all of them
const Tensor& single(const char* name, const Tensors& tensors);         // the only one
void check_ranks(const char* name, const Tensors& tensors, int ranks);  // one tensor a rank
void check_dtypes(const char* name, const Tensor& a, const Tensor& b);
void check_root(const char* name, int64_t root, int ranks);

// `count` of the host's views from `first` on, as uint8.
Tensors all_bytes(const Tensors& host, size_t first, size_t count);
// One argument a tensor.
std::vector<HostArgument> arguments_of(const Tensors& tensors, Access access);
// All elements, one tensor after the other.
Tensor flat(const Tensors& tensors);

// All of an argument.
Part whole(int argument, const Tensor& tensor);
// One argument a rank, from `first` on.
std::vector<Part> each(int first, const Tensors& tensors);
// Parts of one argument, rank after rank: of so many bytes, or equal ones.
std::vector<Part> split(int argument, const std::vector<int64_t>& bytes);
std::vector<Part> split_equally(int argument, const Tensor& tensor, int ranks);
// A part for one rank, and nothing for the others.
std::vector<Part> only(int rank, int ranks, Part part);
// Bytes of the largest part.
size_t largest(const std::vector<Part>& parts);

}  // namespace anymps::distributed
