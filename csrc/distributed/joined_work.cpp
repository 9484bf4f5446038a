#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "distributed/device_work.h"

namespace anymps::distributed {
namespace {

using c10::ivalue::Future;

class JoinedWork final : public c10d::Work {
  public:
    JoinedWork(std::vector<WorkPtr> works, int rank, std::optional<c10::IValue> value)
        : Work(rank, c10d::OpType::COALESCED), works_(std::move(works)), value_(std::move(value)) {}
    bool isCompleted() override {
        return std::ranges::all_of(works_, [](const WorkPtr& work) { return work->isCompleted(); });
    }
    bool isSuccess() const override {
        return std::ranges::all_of(works_, [](const WorkPtr& work) { return work->isSuccess(); });
    }
    bool wait(std::chrono::milliseconds timeout) override {
        forget(this);
        for (const auto& work : works_) work->wait(timeout);
        return true;
    }
    void synchronize() override { wait(kNoTimeout); }
    void blockCurrentStream() override { wait(kNoTimeout); }
    Tensors result() override {
        Tensors results;
        for (const auto& work : works_) {
            for (auto& tensor : work->result()) results.push_back(tensor);
        }
        return results;
    }
    c10::intrusive_ptr<Future> getFuture() override {
        TORCH_CHECK(!works_.empty(), "The coalesced group has no collective.");
        c10::List<c10::intrusive_ptr<Future>> parts(c10::FutureType::create(c10::ListType::ofTensors()));
        for (const auto& work : works_) parts.push_back(work->getFuture());
        const c10::IValue value = value_ ? *value_ : c10::IValue(result());
        const auto value_of_all = [value](Future& all) {
            if (all.hasError()) std::rethrow_exception(all.exception_ptr());
            return value;
        };
        return c10::collectAll(parts)->then(value_of_all, value.type());
    }
    // The worst one.
    c10::intrusive_ptr<Future> getFutureResult() override {
        TORCH_CHECK(!works_.empty(), "The coalesced group has no collective.");
        std::vector<c10::intrusive_ptr<Future>> outcomes;
        c10::List<c10::intrusive_ptr<Future>> parts(c10::FutureType::create(c10::IntType::get()));
        for (const auto& work : works_) parts.push_back(outcomes.emplace_back(work->getFutureResult()));
        const auto worst = [outcomes = std::move(outcomes)](Future&) {
            int64_t outcome = 0;
            for (const auto& each : outcomes) outcome = std::max(outcome, each->value().toInt());
            return c10::IValue(outcome);
        };
        return c10::collectAll(parts)->then(worst, c10::IntType::get());
    }

  private:
    std::vector<WorkPtr> works_;
    std::optional<c10::IValue> value_;
};

}  // namespace

WorkPtr join(std::vector<WorkPtr> works, int rank, std::optional<c10::IValue> value) {
    if (works.size() == 1 && !value) return works.front();
    return c10::make_intrusive<JoinedWork>(std::move(works), rank, std::move(value));
}

}  // namespace anymps::distributed
