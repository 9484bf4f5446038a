#include "distributed/self_messages.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include <utility>

#include "runtime/stream.h"

namespace anymps::distributed {

using c10::ivalue::Future;

// Completed when the copy is recorded: what is recorded next comes behind it, in any stream.
class SelfMessages::Message final : public c10d::Work {
  public:
    Message(int rank, c10d::OpType type, Tensor tensor, std::chrono::milliseconds timeout)
        : Work(rank, type),
          tensor_(std::move(tensor)),
          timeout_(timeout),
          future_(c10::make_intrusive<Future>(c10::ListType::ofTensors(),
                                              std::vector<c10::Device>{runtime::mps_device()})) {}

    // nullptr: what was sent is elsewhere already.
    void complete(const Tensor* sent = nullptr) {
        try {
            if (sent) take(*sent);
        } catch (...) {
            future_->setError(std::current_exception());
            finish(std::current_exception());
            return tell(c10d::WorkResult::COMM_ERROR);
        }
        future_->markCompleted(c10::IValue(result()));
        finish();
        tell(c10d::WorkResult::SUCCESS);
    }

    bool wait(std::chrono::milliseconds timeout) override {
        return Work::wait(timeout == kNoTimeout ? timeout_ : timeout);
    }
    int sourceRank() const override { return rank_; }
    Tensors result() override { return {tensor_}; }
    c10::intrusive_ptr<Future> getFuture() override { return future_; }
    c10::intrusive_ptr<Future> getFutureResult() override { return outcome_; }
    void blockCurrentStream() override { wait(kNoTimeout); }

  private:
    void tell(c10d::WorkResult outcome) { outcome_->markCompleted(static_cast<int64_t>(outcome)); }

    void take(const Tensor& sent) {
        TORCH_CHECK(sent.scalar_type() == tensor_.scalar_type() && sent.numel() == tensor_.numel(),
                    "recv: expected the sent tensor's ", sent.numel(), " elements of ", sent.scalar_type(),
                    ", got a tensor of ", tensor_.numel(), " elements of ", tensor_.scalar_type());
        const at::AutoDispatchBelowADInplaceOrView below_autograd;
        tensor_.copy_(sent.reshape(tensor_.sizes()));
    }

    Tensor tensor_;
    const std::chrono::milliseconds timeout_;
    const c10::intrusive_ptr<Future> future_;
    const c10::intrusive_ptr<Future> outcome_ = c10::make_intrusive<Future>(c10::IntType::get());
};

SelfMessages::SelfMessages() = default;
SelfMessages::~SelfMessages() = default;

WorkPtr SelfMessages::send(const Tensor& tensor, int rank, int tag) {
    auto work = c10::make_intrusive<Message>(rank, c10d::OpType::SEND, tensor, kNoTimeout);
    c10::intrusive_ptr<Message> awaited;
    {
        const std::lock_guard lock(mutex_);
        auto& messages = tags_[tag];
        if (messages.awaited.empty()) {
            const at::AutoDispatchBelowADInplaceOrView below_autograd;
            messages.sent.push_back(tensor.clone());
        } else {
            awaited = std::move(messages.awaited.front());
            messages.awaited.pop_front();
        }
    }
    if (awaited) awaited->complete(&tensor);
    work->complete();
    return work;
}

WorkPtr SelfMessages::receive(const Tensor& tensor, int rank, int tag, std::chrono::milliseconds timeout) {
    auto work = c10::make_intrusive<Message>(rank, c10d::OpType::RECV, tensor, timeout);
    Tensor sent;
    {
        const std::lock_guard lock(mutex_);
        auto& messages = tags_[tag];
        if (messages.sent.empty()) {
            messages.awaited.push_back(work);
            return work;
        }
        sent = std::move(messages.sent.front());
        messages.sent.pop_front();
    }
    work->complete(&sent);
    return work;
}

}  // namespace anymps::distributed
