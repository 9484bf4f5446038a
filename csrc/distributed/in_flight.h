// The order of collectives and messages that use the same memory, as NCCL's stream keeps it.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "distributed/device_work.h"

namespace anymps::distributed {

// Bytes of a storage, from the first to the last that a tensor uses.
struct Span {
    const c10::StorageImpl* storage;
    int64_t begin, end;
    bool written;

    bool conflicts(const Span& other) const {
        return storage == other.storage && begin < other.end && other.begin < end &&
               (written || other.written);
    }
};

// Those of the tensors that have elements.
void add_spans(std::vector<Span>& spans, const Tensors& tensors, bool written);
// Of an exchange that is about to start.
std::vector<Span> spans_of(const Exchange& exchange);

// What collectives or messages of a group that run still use. Thread-safe.
class InFlight {
  public:
    // Has the caller's stream, or the caller, wait for those that write what is used next, or use what is
    // written next, and that it has not waited for. before_wait is called where it is the caller.
    void wait_for(const std::vector<Span>& next, const std::function<void()>& before_wait);
    void add(const c10::intrusive_ptr<DeviceWork>& work, std::vector<Span> spans);
    // The caller waits for those that were added before this one; what went wrong with them is theirs to
    // tell.
    void wait_for_earlier(const DeviceWork* work);

  private:
    struct Use {
        c10::weak_intrusive_ptr<DeviceWork> work;
        std::vector<Span> spans;
    };

    std::mutex mutex_;
    std::vector<Use> uses_;
};

}  // namespace anymps::distributed
