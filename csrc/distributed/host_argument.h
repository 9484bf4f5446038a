// Tensors of the device as memory of the host, for as long as a collective works on them.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace anymps::distributed {

using at::Tensor;
using Tensors = std::vector<Tensor>;

// What the exchange between processes does to a tensor.
enum class Access { Read, Write, ReadWrite };

struct StagingBuffer;

// One of `count` slices of nearly equal size, of any number of elements.
struct Slice {
    int64_t index = 0, count = 1;

    int64_t begin(int64_t elements) const {
        return elements / count * index + std::min(index, elements % count);
    }
    int64_t end(int64_t elements) const { return Slice{index + 1, count}.begin(elements); }
};

// One tensor of a collective. On unified memory the host works on the tensor's own bytes; elsewhere on
// staging memory, and the device copies in its order. Owner: one collective, which constructs it on the
// caller's thread and hands it on; not to be used by two threads at once.
class HostArgument {
  public:
    // `exchanged` travels in the tensor's place where it is defined: of the same shape, and of any dtype that
    // copy_ converts. Records what makes it contiguous. Raises PyTorch's error where elements that are to be
    // written share their memory, as those of expand() do.
    HostArgument(const Tensor& tensor, Access access, const Tensor& exchanged = {});

    // What it was made of.
    const Tensor& tensor() const { return tensor_; }
    // What travels: contiguous, on the device.
    const Tensor& exchanged() const { return exchanged_; }

    // 0 where there are no elements.
    uint64_t device_address() const;

    // Records what brings exchanged(), or a slice of its elements, to where the host finds it. Slices follow
    // one another, the first one first.
    void to_host(Slice slice = {});
    // Whether the host works on the tensor's own bytes, or would.
    bool in_place() const;

    // The same bytes, as a CPU tensor, after to_host(). To be touched only when what was recorded has
    // completed.
    const Tensor& host() const { return host_; }

    // The elements of a slice of host(), in one dimension; host() itself where there is one slice.
    Tensor host(Slice slice) const;

    // Records what brings the host's bytes back into exchanged(), all or those of a slice.
    void to_device(Slice slice = {});
    // Records the copy from exchanged() to the tensor, where the two are not the same. Below autograd and
    // without a new version of the tensor, as PyTorch's own backends write.
    void to_tensor();
    Access access() const { return access_; }
    bool written() const { return access_ != Access::Read; }
    // Whether to_tensor() has something to do.
    bool copied() const;

  private:
    Tensor tensor_, exchanged_, host_;
    Access access_;
    std::shared_ptr<StagingBuffer> staging_;
};

// The same memory and version without what Python has of the tensor. A thread that lets go of the last C++
// reference to a tensor that Python knows waits for the interpreter, and the memory with it.
Tensor alias_of(const Tensor& tensor);
Tensors alias_of(const Tensors& tensors);

// Whether ANYMPS_STAGING=1 asks for the way of devices whose memory the host does not see.
bool staging_wanted();

// A CPU tensor's bytes in one dimension: what is only moved has no dtype.
Tensor bytes_of(const Tensor& host);

}  // namespace anymps::distributed
