#include "distributed/mps_backend.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include <algorithm>
#include <numeric>
#include <utility>

#include "distributed/collective_arguments.h"

namespace anymps::distributed {
namespace {

using Type = c10d::OpType;

// Split sizes along dimension 0, or equal ones, in bytes.
std::vector<int64_t> byte_splits(const std::vector<int64_t>& splits, const Tensor& tensor, int ranks) {
    TORCH_CHECK(tensor.dim() > 0, "all_to_all_single: expected tensors of at least one dimension");
    c10d::checkSplitSizes(splits, tensor, ranks);
    TORCH_CHECK(std::ranges::all_of(splits, [](int64_t size) { return size >= 0; }),
                "split_with_sizes expects split_sizes have only non-negative entries, but got split_sizes=",
                c10::IntArrayRef(splits));
    int64_t row = static_cast<int64_t>(tensor.element_size());
    for (const int64_t size : tensor.sizes().slice(1)) row *= size;
    std::vector<int64_t> bytes(ranks, tensor.size(0) / ranks * row);
    for (size_t i = 0; i < splits.size(); ++i) bytes[i] = splits[i] * row;
    return bytes;
}

std::vector<int64_t> bytes_each(const Tensors& tensors) {
    std::vector<int64_t> bytes;
    for (const auto& tensor : tensors) bytes.push_back(static_cast<int64_t>(tensor.nbytes()));
    return bytes;
}

// The parts of a flat tensor, into tensors of any shape.
void unflatten(const Tensor& from, const Tensors& tensors) {
    int64_t first = 0;
    for (const auto& tensor : tensors) {
        const int64_t count = tensor.numel();
        Tensor to = tensor;
        to.copy_(from.narrow(0, first, count).view(tensor.sizes()));
        first += count;
    }
}

// The output holds the inputs of all ranks. The words are those of NCCL's backend.
void check_gathered(const Tensor& output, const Tensor& input, int ranks) {
    TORCH_CHECK_VALUE(output.numel() == input.numel() * ranks,
                      "output tensor size must be equal to world_size times input tensor size");
}

int64_t sum_of(const std::vector<int64_t>& values) {
    return std::accumulate(values.begin(), values.end(), int64_t{0});
}

}  // namespace

MpsBackend::MpsBackend(c10::intrusive_ptr<c10d::Backend> host, std::unique_ptr<LocalGroup> local)
    : Backend(host->getRank(), host->getSize()),
      host_(std::move(host)),
      local_(std::move(local)),
      abort_at_exit_([this] { abort(); }) {}

void MpsBackend::abort() {
    if (local_) local_->abort();
    host_->abort();
}

c10::intrusive_ptr<c10d::Backend::Options> MpsBackend::getBackendOptions() {
    return c10::make_intrusive<Options>(kBackendName, host_->getBackendOptions()->timeout);
}

WorkPtr MpsBackend::run(Exchange exchange, std::chrono::milliseconds timeout) {
    if (getSize() == 1 && !exchange.arguments.empty())
        return started(launch_alone(std::move(exchange), caller()));
    if (timeout == c10d::kUnsetTimeout) timeout = host_->getBackendOptions()->timeout;
    auto spans = spans_of(exchange);
    auto work = local_ ? local_->launch(std::move(exchange), caller(), timeout)
                       : launch(std::move(exchange), caller());
    in_flight_->add(work, std::move(spans));
    if (!local_) work->keep_order(in_flight_);
    return started(std::move(work));
}

void MpsBackend::follow(const Tensors& read, const Tensors& written) {
    std::vector<Span> next;
    add_spans(next, read, false);
    add_spans(next, written, true);
    follow(next, *in_flight_);
    follow(next, messages_in_flight_);
}

void MpsBackend::follow_collectives(const Tensors& tensors, Access access) {
    std::vector<Span> next;
    add_spans(next, tensors, access == Access::Write);
    follow(next, *in_flight_);
}

void MpsBackend::follow(const std::vector<Span>& next, InFlight& earlier) {
    earlier.wait_for(next, [this] {
        if (local_) local_->hand_over();
    });
}

WorkPtr MpsBackend::started(WorkPtr work) {
    if (coalescing_) coalesced_.push_back(work);
    return work;
}

void MpsBackend::startCoalescing() {
    coalescing_ = true;
    coalesced_.clear();
}

WorkPtr MpsBackend::endCoalescing() {
    coalescing_ = false;
    return join(std::exchange(coalesced_, {}), getRank());
}

WorkPtr MpsBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
    const Tensor& tensor = single("broadcast", tensors);
    check_root("broadcast", options.rootRank, getSize());
    const Access access = getRank() == options.rootRank ? Access::Read : Access::Write;
    const auto root = static_cast<int>(options.rootRank);
    access == Access::Read ? follow(tensors, {}) : follow({}, tensors);
    std::vector<Part> give(getSize()), take(getSize());
    if (getRank() == root) {
        std::ranges::fill(give, whole(0, tensor));
    } else {
        take[root] = whole(0, tensor);
    }
    Exchange exchange{"broadcast", Type::BROADCAST, tensors, arguments_of({tensor}, access),
                      [host = host_, options](const Tensors& views) {
                          Tensors bytes = all_bytes(views, 0, 1);
                          return std::vector{host->broadcast(bytes, options)};
                      }};
    exchange.sliced = true;
    exchange.schedules.push_back(copies(getRank(), give, take, true, tensor.nbytes()));
    return run(std::move(exchange), options.timeout);
}

WorkPtr MpsBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) {
    const Tensor& input = single("all_gather", inputs);
    TORCH_CHECK(outputs.size() == 1, "all_gather: expected one list of outputs, got ", outputs.size());
    check_ranks("all_gather", outputs[0], getSize());
    for (const auto& output : outputs[0]) check_dtypes("all_gather", output, input);
    const auto same_size = [&](const Tensor& output) { return output.numel() == input.numel(); };
    const bool even = std::ranges::all_of(outputs[0], same_size);
    TORCH_CHECK(same_size(outputs[0][getRank()]), "all_gather: rank ", getRank(), " gives ", input.numel(),
                " elements, and its output holds ", outputs[0][getRank()].numel());
    follow(inputs, outputs[0]);
    if (!even && !local_) return gather_uneven(outputs[0], input, options);
    auto arguments = arguments_of(outputs[0], Access::Write);
    arguments.emplace_back(input, Access::Read);
    Exchange exchange{"all_gather", Type::ALLGATHER, outputs[0], std::move(arguments),
                      [host = host_, options](const Tensors& views) {
                          std::vector<Tensors> out{all_bytes(views, 0, views.size() - 1)};
                          Tensors in = all_bytes(views, views.size() - 1, 1);
                          return in[0].numel() == 0 ? std::vector<WorkPtr>{}
                                                    : std::vector{host->allgather(out, in, options)};
                      }};
    const std::vector<Part> give(getSize(), whole(getSize(), input)), take = each(0, outputs[0]);
    exchange.schedules.push_back(copies(getRank(), give, take, true, largest(take)));
    return run(std::move(exchange), options.timeout);
}

WorkPtr MpsBackend::gather_uneven(Tensors& outputs, const Tensor& input,
                                  const c10d::AllgatherOptions& options) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    Tensor own = outputs[getRank()];
    own.copy_(input.view(own.sizes()));
    std::vector<HostArgument> arguments;
    for (int rank = 0; rank < getSize(); ++rank) {
        arguments.emplace_back(outputs[rank], rank == getRank() ? Access::Read : Access::Write);
    }
    return run({"all_gather", Type::ALLGATHER, outputs, std::move(arguments),
                [host = host_, options](const Tensors& views) {
                    std::vector<WorkPtr> works;
                    for (size_t rank = 0; rank < views.size(); ++rank) {
                        if (views[rank].numel() == 0) continue;
                        c10d::BroadcastOptions from;
                        from.rootRank = static_cast<int64_t>(rank);
                        from.timeout = options.timeout;
                        Tensors bytes = all_bytes(views, rank, 1);
                        works.push_back(host->broadcast(bytes, from));
                    }
                    return works;
                }},
               options.timeout);
}

WorkPtr MpsBackend::_allgather_base(Tensor& output, Tensor& input, const c10d::AllgatherOptions& options) {
    Tensors outputs{output}, inputs{input};
    return allgather_into_tensor_coalesced(outputs, inputs, options);
}

WorkPtr MpsBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                    const c10d::AllgatherOptions& options) {
    constexpr const char* kName = "all_gather_into_tensor";
    TORCH_CHECK(outputs.size() == inputs.size(), kName, ": got ", outputs.size(), " outputs and ",
                inputs.size(), " inputs");
    check(kName, outputs);
    check(kName, inputs);
    for (size_t i = 0; i < inputs.size(); ++i) {
        check_dtypes(kName, outputs[i], inputs[i]);
        check_gathered(outputs[i], inputs[i], getSize());
    }
    follow(inputs, outputs);
    auto arguments = arguments_of(outputs, Access::Write);
    for (auto& input : arguments_of(inputs, Access::Read)) arguments.push_back(std::move(input));
    Exchange exchange{kName, Type::_ALLGATHER_BASE, outputs, std::move(arguments),
                      [host = host_, options](const Tensors& views) {
                          std::vector<WorkPtr> works;
                          const size_t count = views.size() / 2;
                          for (size_t i = 0; i < count; ++i) {
                              Tensor out = bytes_of(views[i]), in = bytes_of(views[count + i]);
                              if (in.numel() != 0) works.push_back(host->_allgather_base(out, in, options));
                          }
                          return works;
                      }};
    const auto count = static_cast<int>(inputs.size());
    for (int i = 0; i < count; ++i) {
        const std::vector<Part> give(getSize(), whole(count + i, inputs[i]));
        exchange.schedules.push_back(
            copies(getRank(), give, split_equally(i, outputs[i], getSize()), true, inputs[i].nbytes()));
    }
    return run(std::move(exchange), options.timeout);
}

WorkPtr MpsBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                        const c10d::AllgatherOptions& options) {
    TORCH_CHECK(outputs.size() == static_cast<size_t>(getSize()),
                "all_gather_coalesced: expected a list of tensors for each of ", getSize(), " ranks, got ",
                outputs.size());
    std::vector<WorkPtr> works;
    for (size_t i = 0; i < inputs.size(); ++i) {
        std::vector<Tensors> out(1);
        for (const auto& of_rank : outputs) {
            TORCH_CHECK(of_rank.size() == inputs.size(), "all_gather_coalesced: expected ", inputs.size(),
                        " outputs for each rank, got ", of_rank.size());
            out[0].push_back(of_rank[i]);
        }
        Tensors in{inputs[i]};
        works.push_back(allgather(out, in, options));
    }
    return join(std::move(works), getRank(),
                outputs.size() == 1 ? c10::IValue(outputs[0]) : c10::IValue(outputs));
}

WorkPtr MpsBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                           const c10d::GatherOptions& options) {
    const Tensor& input = single("gather", inputs);
    check_root("gather", options.rootRank, getSize());
    Tensors list;
    if (getRank() == options.rootRank) {
        TORCH_CHECK(outputs.size() == 1, "gather: expected one list of outputs, got ", outputs.size());
        check_ranks("gather", outputs[0], getSize());
        list = outputs[0];
    } else {
        TORCH_CHECK(outputs.empty(), "gather: requires empty output on non-root");
    }
    for (const auto& output : list) {
        check_dtypes("gather", output, input);
        TORCH_CHECK(output.numel() == input.numel(), "gather: expected outputs of the input's ",
                    input.numel(), " elements, got one of ", output.numel());
    }
    follow(inputs, list);
    auto arguments = arguments_of(list, Access::Write);
    arguments.emplace_back(input, Access::Read);
    Exchange exchange{
        "gather", Type::GATHER, list, std::move(arguments), [host = host_, options](const Tensors& views) {
            const size_t count = views.size() - 1;
            std::vector<Tensors> out;
            if (count != 0) out.push_back(all_bytes(views, 0, count));
            Tensors in = all_bytes(views, count, 1);
            return in[0].numel() == 0 ? std::vector<WorkPtr>{} : std::vector{host->gather(out, in, options)};
        }};
    const auto root = static_cast<int>(options.rootRank), count = static_cast<int>(list.size());
    exchange.schedules.push_back(copies(getRank(), only(root, getSize(), whole(count, input)),
                                        list.empty() ? std::vector<Part>(getSize()) : each(0, list), true,
                                        input.nbytes()));
    return run(std::move(exchange), options.timeout);
}

WorkPtr MpsBackend::gather_into_tensor(Tensor& output, Tensor& input, const c10d::GatherOptions& options) {
    check("gather_into_tensor", input);
    std::vector<Tensors> outputs;
    if (getRank() == options.rootRank) {
        check_gathered(output, input, getSize());
        TORCH_CHECK(output.is_contiguous(), "gather_into_tensor: expected a contiguous output");
        outputs.push_back(output.view({-1}).chunk(getSize()));
    }
    Tensors inputs{input};
    return gather(outputs, inputs, options);
}

WorkPtr MpsBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                            const c10d::ScatterOptions& options) {
    const Tensor& output = single("scatter", outputs);
    check_root("scatter", options.rootRank, getSize());
    Tensors list;
    if (getRank() == options.rootRank) {
        TORCH_CHECK(inputs.size() == 1, "scatter: expected one list of inputs, got ", inputs.size());
        check_ranks("scatter", inputs[0], getSize());
        list = inputs[0];
    } else {
        TORCH_CHECK(inputs.empty(), "scatter: requires empty input on non-root");
    }
    for (const auto& input : list) {
        check_dtypes("scatter", output, input);
        TORCH_CHECK(output.numel() == input.numel(), "scatter: expected inputs of the output's ",
                    output.numel(), " elements, got one of ", input.numel());
    }
    follow(list, outputs);
    auto arguments = arguments_of(list, Access::Read);
    arguments.emplace_back(output, Access::Write);
    Exchange exchange{"scatter", Type::SCATTER, outputs, std::move(arguments),
                      [host = host_, options](const Tensors& views) {
                          const size_t count = views.size() - 1;
                          std::vector<Tensors> in;
                          if (count != 0) in.push_back(all_bytes(views, 0, count));
                          Tensors out = all_bytes(views, count, 1);
                          return out[0].numel() == 0 ? std::vector<WorkPtr>{}
                                                     : std::vector{host->scatter(out, in, options)};
                      }};
    const auto root = static_cast<int>(options.rootRank), count = static_cast<int>(list.size());
    exchange.schedules.push_back(copies(getRank(),
                                        list.empty() ? std::vector<Part>(getSize()) : each(0, list),
                                        only(root, getSize(), whole(count, output)), false, output.nbytes()));
    return run(std::move(exchange), options.timeout);
}

WorkPtr MpsBackend::alltoall_base(Tensor& output, Tensor& input, std::vector<int64_t>& output_splits,
                                  std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
    constexpr const char* kName = "all_to_all_single";
    check(kName, output);
    check(kName, input);
    check_dtypes(kName, output, input);
    auto got = byte_splits(output_splits, output, getSize());
    auto sent = byte_splits(input_splits, input, getSize());
    const std::vector<Part> give = distributed::split(1, sent), take = distributed::split(0, got);
    follow({input}, {output});
    std::vector<HostArgument> arguments;
    arguments.emplace_back(output, Access::Write);
    arguments.emplace_back(input, Access::Read);
    Exchange exchange{kName,
                      Type::ALLTOALL_BASE,
                      {output},
                      std::move(arguments),
                      [host = host_, options, got, sent](const Tensors& views) mutable {
                          Tensor out = bytes_of(views[0]), in = bytes_of(views[1]);
                          return std::vector{host->alltoall_base(out, in, got, sent, options)};
                      }};
    if (output_splits.empty() && input_splits.empty()) {
        // Who gives no sizes says that all parts of all ranks are equal.
        exchange.schedules.push_back(copies(getRank(), give, take, false, largest(give)));
    } else {
        set_uneven(exchange, give, take);
    }
    return run(std::move(exchange), options.timeout);
}

void MpsBackend::set_uneven(Exchange& exchange, const std::vector<Part>& give,
                            const std::vector<Part>& take) {
    exchange.own_number = std::max(largest(give), largest(take));
    exchange.schedule_for = [rank = getRank(), give, take](uint64_t bytes) {
        return copies(rank, give, take, false, bytes);
    };
}

WorkPtr MpsBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
    check_ranks("all_to_all", outputs, getSize());
    check_ranks("all_to_all", inputs, getSize());
    for (const auto& output : outputs) check_dtypes("all_to_all", output, inputs[0]);
    for (const auto& input : inputs) check_dtypes("all_to_all", outputs[0], input);
    follow(inputs, outputs);
    auto got = bytes_each(outputs), sent = bytes_each(inputs);
    if (local_) {
        auto arguments = arguments_of(outputs, Access::Write);
        for (auto& input : arguments_of(inputs, Access::Read)) arguments.push_back(std::move(input));
        Exchange exchange{"all_to_all", Type::ALLTOALL, outputs, std::move(arguments), {}};
        set_uneven(exchange, each(getSize(), inputs), each(0, outputs));
        return run(std::move(exchange), options.timeout);
    }
    const auto elements = sum_of(got) / static_cast<int64_t>(outputs[0].element_size());
    std::vector<HostArgument> arguments;
    arguments.emplace_back(at::empty({elements}, outputs[0].options()), Access::Write);
    arguments.emplace_back(flat(inputs), Access::Read);
    return run(
        {"all_to_all", Type::ALLTOALL, outputs, std::move(arguments),
         [host = host_, options, got, sent](const Tensors& views) mutable {
             Tensor out = bytes_of(views[0]), in = bytes_of(views[1]);
             return std::vector{host->alltoall_base(out, in, got, sent, options)};
         },
         [outputs](std::vector<HostArgument>& arguments) { unflatten(arguments[0].exchanged(), outputs); }},
        options.timeout);
}

WorkPtr MpsBackend::message(const char* name, Type type, Tensors& tensors, Access access,
                            std::function<WorkPtr(Tensors&)> start) {
    const Tensor& tensor = single(name, tensors);
    follow_collectives(tensors, access);
    Exchange exchange{name, type, tensors, arguments_of({tensor}, access),
                      [start = std::move(start)](const Tensors& views) {
                          Tensors bytes = all_bytes(views, 0, 1);
                          return std::vector{start(bytes)};
                      }};
    auto spans = spans_of(exchange);
    auto work = launch_message(std::move(exchange), caller(), host_->getBackendOptions()->timeout);
    messages_in_flight_.add(work, std::move(spans));
    return started(std::move(work));
}

WorkPtr MpsBackend::send(Tensors& tensors, int destination, int tag) {
    check_root("send", destination, getSize());
    if (destination == getRank()) {
        const Tensor& tensor = single("send", tensors);
        follow_collectives(tensors, Access::Read);
        return started(self_messages_.send(tensor, getRank(), tag));
    }
    return message(
        "send", Type::SEND, tensors, Access::Read,
        [host = host_, destination, tag](Tensors& bytes) { return host->send(bytes, destination, tag); });
}

WorkPtr MpsBackend::recv(Tensors& tensors, int source, int tag) {
    check_root("recv", source, getSize());
    if (source == getRank()) {
        const auto timeout = host_->getBackendOptions()->timeout;
        const Tensor& tensor = single("recv", tensors);
        follow_collectives(tensors, Access::Write);
        return started(self_messages_.receive(tensor, getRank(), tag, timeout));
    }
    return message("recv", Type::RECV, tensors, Access::Write,
                   [host = host_, source, tag](Tensors& bytes) { return host->recv(bytes, source, tag); });
}

WorkPtr MpsBackend::recvAnysource(Tensors& tensors, int tag) {
    return message("recv", Type::RECVANYSOURCE, tensors, Access::Write,
                   [host = host_, tag](Tensors& bytes) { return host->recvAnysource(bytes, tag); });
}

WorkPtr MpsBackend::barrier(const c10d::BarrierOptions& options) {
    Exchange exchange{
        "barrier", Type::BARRIER, {}, {}, [host = host_, timeout = options.timeout](const Tensors&) {
            c10d::BarrierOptions on_host;
            on_host.timeout = timeout;
            return std::vector{host->barrier(on_host)};
        }};
    exchange.schedules.push_back(rendezvous());
    return run(std::move(exchange), options.timeout);
}

}  // namespace anymps::distributed
