// Messages of a rank to itself.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "distributed/device_work.h"

namespace anymps::distributed {

// gloo has no connection to its own rank, NCCL takes such messages in a batch: here they are copies on the
// device. Messages of a tag arrive in the order in which they were sent. Thread-safe.
class SelfMessages {
  public:
    SelfMessages();
    ~SelfMessages();
    // Completed at once: a message that nobody receives yet is kept.
    WorkPtr send(const Tensor& tensor, int rank, int tag);
    // timeout: of a wait() that names none.
    WorkPtr receive(const Tensor& tensor, int rank, int tag, std::chrono::milliseconds timeout);

  private:
    class Message;
    struct Tag {
        std::deque<Tensor> sent;
        std::deque<c10::intrusive_ptr<Message>> awaited;
    };

    std::mutex mutex_;
    std::map<int, Tag> tags_;
};

}  // namespace anymps::distributed
