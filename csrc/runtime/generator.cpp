#include "runtime/generator.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/TensorImpl.h>

#include <cstring>
#include <mutex>

#include "runtime/command_graph.h"
#include "runtime/stream.h"

namespace anymps::runtime {

namespace {

constexpr int64_t kStateBytes = 2 * sizeof(uint64_t);

}  // namespace

MPSGeneratorImpl::MPSGeneratorImpl(uint64_t seed)
    : c10::GeneratorImpl(mps_device(), c10::DispatchKeySet(c10::DispatchKey::MPS)), seed_(seed) {}

void MPSGeneratorImpl::set_current_seed(uint64_t seed) {
    check_not_capturing("Seeding a generator");
    seed_ = seed;
    offset_ = 0;
}

uint64_t MPSGeneratorImpl::seed() {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
}

void MPSGeneratorImpl::set_state(const c10::TensorImpl& new_state) {
    check_not_capturing("Setting a generator's state");
    at::detail::check_rng_state(new_state);
    TORCH_CHECK(new_state.numel() == kStateBytes, "RNG state is wrong size");
    const auto* bytes = static_cast<const char*>(new_state.data());
    std::memcpy(&seed_, bytes, sizeof(seed_));
    std::memcpy(&offset_, bytes + sizeof(seed_), sizeof(offset_));
}

c10::intrusive_ptr<c10::TensorImpl> MPSGeneratorImpl::get_state() const {
    auto state = at::detail::empty_cpu({kStateBytes}, at::kByte, std::nullopt, std::nullopt, std::nullopt,
                                       std::nullopt);
    auto* bytes = static_cast<char*>(state.mutable_data_ptr());
    std::memcpy(bytes, &seed_, sizeof(seed_));
    std::memcpy(bytes + sizeof(seed_), &offset_, sizeof(offset_));
    return state.getIntrusivePtr();
}

PhiloxState MPSGeneratorImpl::reserve(uint64_t blocks) {
    const PhiloxState state{seed_, offset_ & ~kPhiloxInMemory};
    offset_ += blocks;
    return state;
}

MPSGeneratorImpl* MPSGeneratorImpl::clone_impl() const {
    auto* copy = new MPSGeneratorImpl(seed_);
    copy->offset_ = offset_;
    return copy;
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
    if (CommandGraph* graph = capturing()) return graph->reserve_philox(*impl, blocks);
    return impl->reserve(blocks);
}

}  // namespace anymps::runtime
