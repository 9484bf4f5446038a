#include "runtime/generator.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/TensorImpl.h>

#include <cstring>
#include <mutex>
#include <utility>

#include "runtime/command_graph.h"
#include "runtime/stream.h"

namespace anymps::runtime {

namespace {

constexpr int64_t kStateBytes = 2 * sizeof(uint64_t);

}  // namespace

PhiloxState PhiloxSequence::state() const {
    const std::lock_guard lock(mutex_);
    return state_;
}

void PhiloxSequence::set_state(PhiloxState state) {
    const std::lock_guard lock(mutex_);
    state_ = state;
}

void PhiloxSequence::set_offset(uint64_t offset) {
    const std::lock_guard lock(mutex_);
    state_.offset = offset;
}

PhiloxState PhiloxSequence::reserve(uint64_t blocks) {
    const std::lock_guard lock(mutex_);
    const PhiloxState reserved{state_.seed, state_.offset & ~kPhiloxInMemory};
    state_.offset += blocks;
    return reserved;
}

MPSGeneratorImpl::MPSGeneratorImpl(uint64_t seed)
    : MPSGeneratorImpl(std::make_shared<PhiloxSequence>(PhiloxState{seed, 0})) {}

MPSGeneratorImpl::MPSGeneratorImpl(std::shared_ptr<PhiloxSequence> sequence)
    : c10::GeneratorImpl(mps_device(), c10::DispatchKeySet(c10::DispatchKey::MPS)),
      sequence_(std::move(sequence)) {}

void MPSGeneratorImpl::set_current_seed(uint64_t seed) {
    check_not_capturing("Seeding a generator");
    sequence_->set_state({seed, 0});
}

uint64_t MPSGeneratorImpl::seed() {
    const uint64_t seed = c10::detail::getNonDeterministicRandom();
    set_current_seed(seed);
    return seed;
}

void MPSGeneratorImpl::set_state(const c10::TensorImpl& new_state) {
    check_not_capturing("Setting a generator's state");
    at::detail::check_rng_state(new_state);
    TORCH_CHECK(new_state.numel() == kStateBytes, "RNG state is wrong size");
    const auto* bytes = static_cast<const char*>(new_state.data());
    PhiloxState state{};
    std::memcpy(&state.seed, bytes, sizeof(state.seed));
    std::memcpy(&state.offset, bytes + sizeof(state.seed), sizeof(state.offset));
    sequence_->set_state(state);
}

c10::intrusive_ptr<c10::TensorImpl> MPSGeneratorImpl::get_state() const {
    auto result = at::detail::empty_cpu({kStateBytes}, at::kByte, std::nullopt, std::nullopt, std::nullopt,
                                        std::nullopt);
    const PhiloxState state = sequence_->state();
    auto* bytes = static_cast<char*>(result.mutable_data_ptr());
    std::memcpy(bytes, &state.seed, sizeof(state.seed));
    std::memcpy(bytes + sizeof(state.seed), &state.offset, sizeof(state.offset));
    return result.getIntrusivePtr();
}

void MPSGeneratorImpl::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& new_state) {
    TORCH_CHECK(new_state->device().type() == device_type(), "Expected a generator of mps, got one of ",
                new_state->device());
    sequence_ = static_cast<const MPSGeneratorImpl&>(*new_state).sequence_;
}

c10::intrusive_ptr<c10::GeneratorImpl> MPSGeneratorImpl::graphsafe_get_state() const {
    return c10::make_intrusive<MPSGeneratorImpl>(sequence_);
}

MPSGeneratorImpl* MPSGeneratorImpl::clone_impl() const {
    return new MPSGeneratorImpl(std::make_shared<PhiloxSequence>(sequence_->state()));
}

const at::Generator& default_generator() {
    // Leaked: Python may still hold it when static objects are destroyed.
    static const auto* generator =
        new at::Generator(at::make_generator<MPSGeneratorImpl>(c10::detail::getNonDeterministicRandom()));
    return *generator;
}

PhiloxState reserve_philox(const std::optional<at::Generator>& generator, uint64_t numbers) {
    auto* impl = at::get_generator_or_default<MPSGeneratorImpl>(generator, default_generator());
    const std::lock_guard lock(impl->mutex_);
    const uint64_t blocks = (numbers + kNumbersPerBlock - 1) / kNumbersPerBlock;
    if (CommandGraph* graph = capturing()) return graph->reserve_philox(impl->sequence(), blocks);
    return impl->sequence()->reserve(blocks);
}

void check_drawn_device(const at::TensorBase& drawn) {
    TORCH_CHECK(drawn.device().type() == at::kMPS, "Expected a '", drawn.device().type(),
                "' device type for generator but found 'mps'");
}

}  // namespace anymps::runtime
