// The random number generator of the device: a Philox4x32-10 key (the seed) and a position in its sequence.
#pragma once

#include <ATen/core/Generator.h>
#include <anymps/shaders/lib/philox.h>
#include <c10/core/GeneratorImpl.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

namespace anymps::runtime {

// What a kernel needs to draw numbers: block i of a draw is Philox(key = seed, counter = offset + i).
using PhiloxState = shaders::philox::PhiloxState;

// In an offset: the seed is the address of the PhiloxState to which the rest of the offset is added.
inline constexpr uint64_t kPhiloxInMemory = 1ull << 63;

// Four 32-bit numbers come from one block of Philox.
inline constexpr uint64_t kNumbersPerBlock = 4;

// A seed and a position. Generators have one in common where one was given that of the other. Thread-safe.
class PhiloxSequence {
  public:
    explicit PhiloxSequence(PhiloxState state) : state_(state) {}

    PhiloxState state() const;
    void set_state(PhiloxState state);
    void set_offset(uint64_t offset);
    // Takes `blocks` blocks out of the sequence.
    PhiloxState reserve(uint64_t blocks);

  private:
    mutable std::mutex mutex_;
    PhiloxState state_;  // the offset in blocks
};

// Not thread-safe, as every c10 generator: hold mutex_ around all but the read-only methods.
class MPSGeneratorImpl final : public c10::GeneratorImpl {
  public:
    explicit MPSGeneratorImpl(uint64_t seed = c10::default_rng_seed_val);
    explicit MPSGeneratorImpl(std::shared_ptr<PhiloxSequence> sequence);

    static c10::DeviceType device_type() { return c10::DeviceType::MPS; }

    void set_current_seed(uint64_t seed) override;
    void set_offset(uint64_t offset) override { sequence_->set_offset(offset); }
    uint64_t get_offset() const override { return sequence_->state().offset; }
    uint64_t current_seed() const override { return sequence_->state().seed; }
    uint64_t seed() override;

    // 16 bytes: seed, then offset, both little-endian 64-bit.
    void set_state(const c10::TensorImpl& new_state) override;
    c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

    // Draws from the sequence of another generator from now on, which advances for both: allowed while a
    // graph is captured, whose replays then advance that sequence. Raises RuntimeError for another device's
    // generator.
    void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& new_state) override;
    // A generator that draws from the sequence of this one.
    c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;

    const std::shared_ptr<PhiloxSequence>& sequence() const { return sequence_; }

  private:
    MPSGeneratorImpl* clone_impl() const override;

    std::shared_ptr<PhiloxSequence> sequence_;
};

// The generator behind torch.mps.manual_seed; seeded from the system's entropy at its first use.
const at::Generator& default_generator();

// Reserves enough of the sequence for `numbers` 32-bit numbers, from the given generator or the default one.
// While a graph is captured the result says where kernels find what a replay reserves (philox.slang).
// Thread-safe. Raises RuntimeError when the generator belongs to another device.
PhiloxState reserve_philox(const std::optional<at::Generator>& generator, uint64_t numbers);

// Raises RuntimeError unless `drawn` is mps memory: the dispatcher goes by a call's generator too, and brings
// a CPU tensor with an mps generator here.
void check_drawn_device(const at::TensorBase& drawn);

}  // namespace anymps::runtime
