#include "distributed/shared_memory_backend.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <thread>

#include "distributed/reduction.h"

namespace anymps::distributed {
namespace {

constexpr auto kLookAround = std::chrono::milliseconds(50);  // between checks that the others live
constexpr size_t kBytesOfThread = 1ull << 20;                // for which a thread more is worth its start
constexpr size_t kMaxThreads = 4;
constexpr size_t kLine = 64;

class HostWork final : public c10d::Work {
  public:
    HostWork(int rank, c10d::OpType type)
        : Work(rank, type), future_(c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get())) {}
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
    void end(std::exception_ptr error) {
        if (error) {
            future_->setError(error);
        } else {
            future_->markCompleted(c10::IValue());
        }
        finish(error);
    }

  private:
    c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// Runs work(first, count) over parts of [0, count) in several threads; `unit` bytes each.
template <class Work>
void in_threads(size_t count, size_t unit, int ranks, Work work) {
    const size_t cores = std::max<size_t>(1, std::thread::hardware_concurrency() / ranks);
    const size_t threads = std::clamp<size_t>(count * unit / kBytesOfThread, 1, std::min(kMaxThreads, cores));
    std::vector<std::thread> others;
    const auto first = [&](size_t i) { return count * i / threads; };
    for (size_t i = 1; i < threads; ++i) {
        others.emplace_back([&, i] { work(first(i), first(i + 1) - first(i)); });
    }
    work(0, first(1));
    for (auto& thread : others) thread.join();
}

void copy(std::byte* to, const std::byte* from, size_t bytes, int ranks) {
    in_threads(bytes, 1, ranks,
               [&](size_t first, size_t count) { std::memcpy(to + first, from + first, count); });
}

std::byte* bytes_at(const Tensor& tensor) {
    return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

std::string text_of(const std::vector<uint8_t>& bytes) {
    return {bytes.begin(), bytes.end()};
}

void set(c10d::Store& store, const std::string& key, const std::string& text) {
    store.set(key, std::vector<uint8_t>(text.begin(), text.end()));
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> SharedMemoryBackend::around(c10::intrusive_ptr<c10d::Backend> gloo,
                                                              const c10::intrusive_ptr<c10d::Store>& store) {
    const int rank = gloo->getRank(), size = gloo->getSize();
    const char* wanted = std::getenv("ANYMPS_SHARED_MEMORY");
    if (size == 1) return gloo;
    std::vector<SharedSegment> segments;
    std::string answer = "yes";
    try {
        TORCH_CHECK(wanted == nullptr || std::string_view(wanted) != "0", "not wanted");
        SharedSegment own;
        set(*store, "memory/" + std::to_string(rank), own.record());
        for (int peer = 0; peer < size; ++peer) {
            if (peer == rank) {
                segments.push_back(std::move(own));
            } else {
                segments.emplace_back(text_of(store->get("memory/" + std::to_string(peer))));
            }
        }
    } catch (const std::exception& error) {
        answer = error.what();
        // Peers wait for the record, whatever it says.
        if (segments.size() <= static_cast<size_t>(rank))
            set(*store, "memory/" + std::to_string(rank), "none");
    }
    set(*store, "shared/" + std::to_string(rank), answer);
    bool all = true;
    for (int peer = 0; peer < size; ++peer)
        all &= text_of(store->get("shared/" + std::to_string(peer))) == "yes";
    if (!all) return gloo;
    return c10::make_intrusive<SharedMemoryBackend>(std::move(gloo), std::move(segments));
}

SharedMemoryBackend::SharedMemoryBackend(c10::intrusive_ptr<c10d::Backend> gloo,
                                         std::vector<SharedSegment> segments)
    : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)), segments_(std::move(segments)) {}

void SharedMemoryBackend::abort() {
    thread_.stop();
    gloo_->abort();
}

void SharedMemoryBackend::shutdown() {
    gloo_->shutdown();
}

WorkPtr SharedMemoryBackend::later(c10d::OpType type, std::chrono::milliseconds timeout,
                                   std::function<void(Deadline)> run) {
    auto work = c10::make_intrusive<HostWork>(getRank(), type);
    if (timeout == c10d::kUnsetTimeout) timeout = gloo_->getBackendOptions()->timeout;
    auto job = [this, work, timeout, run = std::move(run)] {
        std::exception_ptr error;
        try {
            if (!failure_.empty()) throw std::runtime_error(failure_);
            run(std::chrono::steady_clock::now() + timeout);
        } catch (const std::exception& e) {
            failure_ = e.what();
            error = std::current_exception();
        }
        work->end(error);
    };
    TORCH_CHECK(thread_.push(std::move(job)), "The process group was aborted.");
    return work;
}

void SharedMemoryBackend::wait_for(SharedSegment::Counter counter, uint32_t step, Deadline deadline) const {
    for (int rank = 0; rank < getSize(); ++rank) {
        const SharedSegment& segment = segments_[rank];
        while (!segment.wait(counter, step, kLookAround)) {
            if (!segment.alive()) throw std::runtime_error("rank " + std::to_string(rank) + " has ended.");
            if (thread_.stopped()) throw std::runtime_error("the process group was aborted.");
            if (std::chrono::steady_clock::now() > deadline)
                throw std::runtime_error("Timed out waiting for rank " + std::to_string(rank) + ".");
        }
    }
}

void SharedMemoryBackend::steps(size_t bytes, size_t most, Deadline deadline,
                                const std::function<void(uint32_t, size_t, size_t)>& write,
                                const std::function<void(uint32_t, size_t, size_t)>& read) {
    for (size_t first = 0; first < bytes; first += most) {
        const size_t count = std::min(most, bytes - first);
        const uint32_t step = ++step_;
        // Everybody has read what was in the slot.
        wait_for(SharedSegment::Read, step - SharedSegment::kSlots, deadline);
        write(step, first, count);
        own().publish(SharedSegment::Written, step);
        wait_for(SharedSegment::Written, step, deadline);
        read(step, first, count);
        own().publish(SharedSegment::Read, step);
    }
}

// Each rank reduces one part of every piece, in its own slot, and takes the others' parts from theirs.
WorkPtr SharedMemoryBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
    return later(c10d::OpType::ALLREDUCE, options.timeout,
                 [this, tensor = tensors.at(0), op = options.reduceOp.op_](Deadline deadline) {
                     std::byte* data = bytes_at(tensor);
                     const size_t unit = tensor.element_size();
                     const int ranks = getSize();
                     // Parts begin at cache lines.
                     const auto part = [&](size_t bytes, int rank) {
                         return rank == ranks ? bytes : bytes * rank / ranks / kLine * kLine;
                     };
                     const auto write = [&](uint32_t step, size_t first, size_t bytes) {
                         copy(own().slot(step), data + first, bytes, ranks);
                     };
                     const auto read = [&](uint32_t step, size_t first, size_t bytes) {
                         const size_t begin = part(bytes, getRank()),
                                      count = part(bytes, getRank() + 1) - begin;
                         for (int rank = 0; rank < ranks && count != 0; ++rank) {
                             if (rank == getRank()) continue;
                             in_threads(count / unit, unit, ranks, [&](size_t from, size_t elements) {
                                 const auto at_slot = [&](const SharedSegment& segment) {
                                     return at::from_blob(segment.slot(step) + begin + from * unit,
                                                          {static_cast<int64_t>(elements)}, tensor.options());
                                 };
                                 combine(at_slot(own()), at_slot(segments_[rank]), op);
                             });
                         }
                         own().publish(SharedSegment::Reduced, step);
                         wait_for(SharedSegment::Reduced, step, deadline);
                         for (int rank = 0; rank < ranks; ++rank) {
                             const size_t from = part(bytes, rank), count = part(bytes, rank + 1) - from;
                             copy(data + first + from, segments_[rank].slot(step) + from, count, ranks);
                         }
                     };
                     steps(tensor.nbytes(), SharedSegment::kSlotBytes, deadline, write, read);
                 });
}

WorkPtr SharedMemoryBackend::_allgather_base(Tensor& output, Tensor& input,
                                             const c10d::AllgatherOptions& options) {
    return later(c10d::OpType::_ALLGATHER_BASE, options.timeout, [this, output, input](Deadline deadline) {
        const size_t bytes = input.nbytes();
        const auto write = [&](uint32_t step, size_t first, size_t count) {
            copy(own().slot(step), bytes_at(input) + first, count, getSize());
        };
        const auto read = [&](uint32_t step, size_t first, size_t count) {
            for (int rank = 0; rank < getSize(); ++rank) {
                std::byte* to = bytes_at(output) + rank * bytes + first;
                // FSDP's inputs are parts of their outputs.
                if (rank == getRank() && to == bytes_at(input) + first) continue;
                copy(to, segments_[rank].slot(step), count, getSize());
            }
        };
        steps(bytes, SharedSegment::kSlotBytes, deadline, write, read);
    });
}

WorkPtr SharedMemoryBackend::alltoall_base(Tensor& output, Tensor& input, std::vector<int64_t>& output_splits,
                                           std::vector<int64_t>& input_splits,
                                           const c10d::AllToAllOptions& options) {
    // Who gives no sizes says that all parts of all ranks are equal.
    if (!output_splits.empty() || !input_splits.empty()) {
        return gloo_->alltoall_base(output, input, output_splits, input_splits, options);
    }
    return later(c10d::OpType::ALLTOALL_BASE, options.timeout, [this, output, input](Deadline deadline) {
        const size_t ranks = getSize(), bytes = input.nbytes() / ranks;
        const size_t most = SharedSegment::kSlotBytes / ranks / kLine * kLine;
        const auto write = [&](uint32_t step, size_t first, size_t count) {
            for (size_t rank = 0; rank < ranks; ++rank) {
                copy(own().slot(step) + rank * most, bytes_at(input) + rank * bytes + first, count,
                     getSize());
            }
        };
        const auto read = [&](uint32_t step, size_t first, size_t count) {
            for (size_t rank = 0; rank < ranks; ++rank) {
                copy(bytes_at(output) + rank * bytes + first, segments_[rank].slot(step) + getRank() * most,
                     count, getSize());
            }
        };
        steps(bytes, most, deadline, write, read);
    });
}

}  // namespace anymps::distributed
