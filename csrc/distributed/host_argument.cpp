#include "distributed/host_argument.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string_view>

#include "runtime/address_map.h"
#include "runtime/command_encoder.h"
#include "runtime/device.h"
#include "vulkan/buffer.h"
#include "vulkan/check.h"

namespace anymps::distributed {

struct StagingBuffer {
    std::shared_ptr<const vulkan::Buffer> buffer;

    ~StagingBuffer() {
        if (buffer) runtime::unmap_buffer(*buffer);
    }
};

namespace {

constexpr size_t kMinStagingBytes = 4096;
constexpr size_t kMaxIdleBytes = 512ull << 20;  // that are kept for later collectives

// Host memory that the device can copy from and to, reused by size. Thread-safe. The host touches a buffer
// only behind a serial that was taken after the buffer was, so earlier copies have completed by then.
class StagingPool {
  public:
    // Leaked: collectives may end while static objects are destroyed.
    static StagingPool& instance() {
        static auto* pool = new StagingPool;
        return *pool;
    }

    // The buffer comes back when the last reference goes.
    std::shared_ptr<StagingBuffer> take(size_t bytes) {
        std::unique_ptr<StagingBuffer> found = reuse(bytes);
        if (!found) found = create(std::max(bytes, kMinStagingBytes));
        return {found.release(), [](StagingBuffer* buffer) { instance().give_back(buffer); }};
    }

  private:
    std::unique_ptr<StagingBuffer> reuse(size_t bytes) {
        const std::lock_guard lock(mutex_);
        const auto fits = [&](const auto& idle) {
            const size_t size = idle->buffer->bytes();
            return size >= bytes && size / 2 <= std::max(bytes, kMinStagingBytes);
        };
        const auto found = std::ranges::find_if(idle_, fits);
        if (found == idle_.end()) return nullptr;
        auto buffer = std::move(*found);
        idle_.erase(found);
        idle_bytes_ -= buffer->buffer->bytes();
        return buffer;
    }

    static std::unique_ptr<StagingBuffer> create(size_t bytes) {
        try {
            auto staging = std::make_unique<StagingBuffer>();
            staging->buffer =
                std::make_shared<const vulkan::Buffer>(runtime::device(), bytes, vulkan::MemoryKind::Staging);
            runtime::map_buffer(staging->buffer);
            return staging;
        } catch (const vulkan::Error& error) {
            TORCH_CHECK_WITH(OutOfMemoryError, !error.out_of_memory(),
                             "MPS collective out of host memory: ", bytes,
                             " bytes of staging memory are not to be had.");
            throw;
        }
    }

    void give_back(StagingBuffer* returned) {
        std::unique_ptr<StagingBuffer> buffer(returned);
        const std::lock_guard lock(mutex_);
        const size_t bytes = buffer->buffer->bytes();
        if (idle_bytes_ + bytes > kMaxIdleBytes) {
            runtime::encoder().wait(runtime::encoder().submit());
            return;
        }
        idle_bytes_ += bytes;
        idle_.push_back(std::move(buffer));
    }

    std::mutex mutex_;
    std::vector<std::unique_ptr<StagingBuffer>> idle_;
    size_t idle_bytes_ = 0;
};

uint64_t address_of(const Tensor& tensor, Access access) {
    const void* data = access == Access::Read ? tensor.const_data_ptr() : tensor.mutable_data_ptr();
    return reinterpret_cast<uint64_t>(data);
}

void copy_slice(uint64_t to, uint64_t from, const Tensor& tensor, Slice slice) {
    const uint64_t size = tensor.element_size(), begin = slice.begin(tensor.numel()) * size;
    const uint64_t bytes = slice.end(tensor.numel()) * size - begin;
    if (bytes != 0) runtime::encoder().copy(to + begin, from + begin, bytes);
}

// nullptr where the host works on staging memory.
std::byte* visible_to_host(uint64_t address, uint64_t bytes) {
    return staging_wanted() ? nullptr : runtime::host_pointer(address, bytes);
}

}  // namespace

Tensor alias_of(const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    return Tensor(impl.shallow_copy_and_detach(impl.version_counter(), true));
}

Tensors alias_of(const Tensors& tensors) {
    Tensors aliases;
    aliases.reserve(tensors.size());
    for (const auto& tensor : tensors) aliases.push_back(alias_of(tensor));
    return aliases;
}

bool staging_wanted() {
    static const bool wanted = [] {
        const char* staging = std::getenv("ANYMPS_STAGING");
        return staging != nullptr && std::string_view(staging) == "1";
    }();
    return wanted;
}

HostArgument::HostArgument(const Tensor& tensor, Access access, const Tensor& exchanged)
    : tensor_(alias_of(tensor)), access_(access) {
    if (written()) at::assert_no_internal_overlap(tensor);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    exchanged_ = (exchanged.defined() ? alias_of(exchanged) : tensor_).resolve_conj().resolve_neg();
    if (exchanged_.is_contiguous()) return;
    exchanged_ = access == Access::Write ? at::empty(exchanged_.sizes(), exchanged_.options())
                                         : exchanged_.contiguous();
}

uint64_t HostArgument::device_address() const {
    return exchanged_.nbytes() == 0 ? 0 : address_of(exchanged_, access_);
}

void HostArgument::to_host(Slice slice) {
    const auto options = exchanged_.options().device(at::kCPU);
    const size_t bytes = exchanged_.nbytes();
    if (bytes == 0) {
        host_ = at::empty(exchanged_.sizes(), options);
        return;
    }
    if (slice.index == 0) {
        std::byte* memory = visible_to_host(device_address(), bytes);
        if (memory == nullptr) {
            staging_ = StagingPool::instance().take(bytes);
            memory = staging_->buffer->host();
        }
        host_ = at::from_blob(memory, exchanged_.sizes(), options);
    }
    if (staging_ && access_ != Access::Write) {
        copy_slice(staging_->buffer->address(), device_address(), exchanged_, slice);
    }
}

Tensor HostArgument::host(Slice slice) const {
    if (slice.count == 1) return host_;
    const int64_t elements = host_.numel(), begin = slice.begin(elements);
    return host_.view({-1}).narrow(0, begin, slice.end(elements) - begin);
}

bool HostArgument::in_place() const {
    return exchanged_.nbytes() == 0 || visible_to_host(device_address(), exchanged_.nbytes()) != nullptr;
}

bool HostArgument::copied() const {
    return written() && !exchanged_.is_alias_of(tensor_);
}

void HostArgument::to_device(Slice slice) {
    if (!staging_ || !written()) return;
    copy_slice(device_address(), staging_->buffer->address(), exchanged_, slice);
}

void HostArgument::to_tensor() {
    if (!copied()) return;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    tensor_.copy_(exchanged_);
}

Tensor bytes_of(const Tensor& host) {
    return at::from_blob(host.mutable_data_ptr(), {static_cast<int64_t>(host.nbytes())},
                         host.options().dtype(at::kByte));
}

}  // namespace anymps::distributed
