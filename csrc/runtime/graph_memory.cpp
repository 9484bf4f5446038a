// Inputs and outputs of replayed graphs, for torch_anymps/inductor/replay.py.
#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/allocator.h"
#include "runtime/command_encoder.h"
#include "runtime/command_graph.h"
#include "runtime/kernel_profile.h"
#include "runtime/stream.h"
#include "runtime/unified_memory.h"

namespace anymps::runtime {
namespace {

// Not while a graph is captured, which takes kernels alone, nor under torch_anymps.profile(), which shows the
// sizes of each.
bool may_replay() {
    return capturing() == nullptr && !profile_is_taken();
}

// The tensors of one captured graph. For one thread at a time.
class GraphMemory final : public torch::CustomClassHolder {
  public:
    // outputs: as captured, none of them a view of an input.
    explicit GraphMemory(std::vector<at::Tensor> outputs) : outputs_(std::move(outputs)) {
        for (const auto& tensor : outputs_) {
            const auto found = std::find_if(storages_.begin(), storages_.end(), [&](const Given& g) {
                return g.captured.is_alias_of(tensor.storage());
            });
            index_.push_back(found - storages_.begin());
            if (found == storages_.end()) storages_.push_back({tensor.storage()});
        }
    }

    // Tensors over the memory of the captured outputs, which they keep alive: what the next replay writes.
    // Those that were given out before and still live get memory of their own first; nullopt, and nothing has
    // changed, where that is more than max_moved bytes.
    std::optional<std::vector<at::Tensor>> take(int64_t max_moved) {
        const int64_t living = living_bytes();
        if (living > max_moved) return std::nullopt;
        if (living > 0) move_out();
        return give();
    }

  private:
    struct Given {
        c10::Storage captured;
        // Of the tensors last given out.
        c10::weak_intrusive_ptr<c10::StorageImpl> storage{c10::intrusive_ptr<c10::StorageImpl>()};
    };

    // Of outputs that were given out and still live: what the next replay would overwrite.
    int64_t living_bytes() const {
        int64_t bytes = 0;
        for (const Given& given : storages_) {
            if (given.storage.use_count() > 0) bytes += static_cast<int64_t>(given.captured.nbytes());
        }
        return bytes;
    }

    // Gives outputs that still live memory of their own; whoever holds them sees no difference.
    void move_out() {
        for (Given& given : storages_) {
            const auto living = given.storage.lock();
            given.storage.reset();
            const size_t bytes = given.captured.nbytes();
            // An owner may have given it other memory meanwhile, as resize_() does.
            if (!living || bytes == 0 || living->data() != given.captured.data()) continue;
            c10::DataPtr memory = allocator().allocate(bytes);
            encoder().copy(reinterpret_cast<uint64_t>(memory.get()),
                           reinterpret_cast<uint64_t>(given.captured.data()), bytes);
            living->set_data_ptr_noswap(std::move(memory));
        }
    }

    std::vector<at::Tensor> give() {
        std::vector<c10::Storage> fresh;
        for (Given& given : storages_) {
            const c10::Storage& captured = given.captured;
            fresh.emplace_back(c10::Storage::use_byte_size_t(), captured.nbytes(),
                               pointer_into(captured.data_ptr().get(), captured, mps_device()), &allocator(),
                               true);
            given.storage = fresh.back().getWeakStorageImpl();
        }
        std::vector<at::Tensor> result;
        for (size_t i = 0; i < outputs_.size(); ++i) {
            const at::Tensor& like = outputs_[i];
            auto tensor = at::detail::make_tensor<c10::TensorImpl>(
                c10::Storage(fresh[index_[i]]), c10::DispatchKeySet(c10::DispatchKey::MPS), like.dtype());
            auto* impl = tensor.unsafeGetTensorImpl();
            impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
            impl->_set_conj(like.is_conj());
            impl->_set_neg(like.is_neg());
            result.push_back(std::move(tensor));
        }
        return result;
    }

    std::vector<at::Tensor> outputs_;
    std::vector<Given> storages_;
    std::vector<size_t> index_;  // of an output's storage
};

TORCH_LIBRARY_FRAGMENT(anymps, m) {
    m.def("may_replay() -> bool", may_replay);
    m.class_<GraphMemory>("GraphMemory")
        .def(torch::init<std::vector<at::Tensor>>())
        .def("take", &GraphMemory::take);
}

}  // namespace
}  // namespace anymps::runtime
