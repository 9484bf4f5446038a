// The random number generator of the device: a Philox4x32-10 key (the seed) and a position in its sequence.
#pragma once

#include <ATen/core/Generator.h>
#include <anymps/shaders/lib/philox.h>
#include <c10/core/GeneratorImpl.h>

#include <cstdint>
#include <optional>

namespace anymps::runtime {

// What a kernel needs to draw numbers: block i of a draw is Philox(key = seed, counter = offset + i).
using PhiloxState = shaders::philox::PhiloxState;

// In an offset: the seed is the address of the PhiloxState to which the rest of the offset is added.
inline constexpr uint64_t kPhiloxInMemory = 1ull << 63;

// Four 32-bit numbers come from one block of Philox.
inline constexpr uint64_t kNumbersPerBlock = 4;

// Not thread-safe, as every c10 generator: hold mutex_ around all but the read-only methods.
class MPSGeneratorImpl final : public c10::GeneratorImpl {
  public:
    explicit MPSGeneratorImpl(uint64_t seed = c10::default_rng_seed_val);

    static c10::DeviceType device_type() { return c10::DeviceType::MPS; }

    void set_current_seed(uint64_t seed) override;
    void set_offset(uint64_t offset) override { offset_ = offset; }
    uint64_t get_offset() const override { return offset_; }
    uint64_t current_seed() const override { return seed_; }
    uint64_t seed() override;

    // 16 bytes: seed, then offset, both little-endian 64-bit.
    void set_state(const c10::TensorImpl& new_state) override;
    c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

    // Takes `blocks` blocks out of the sequence.
    PhiloxState reserve(uint64_t blocks);

  private:
    MPSGeneratorImpl* clone_impl() const override;

    uint64_t seed_;
    uint64_t offset_ = 0;  // in blocks
};

// The generator behind torch.mps.manual_seed; seeded from the system's entropy at its first use.
const at::Generator& default_generator();

// Reserves enough of the sequence for `numbers` 32-bit numbers, from the given generator or the default one.
// While a graph is captured the result says where kernels find what a replay reserves (philox.slang).
// Thread-safe. Raises RuntimeError when the generator belongs to another device.
PhiloxState reserve_philox(const std::optional<at::Generator>& generator, uint64_t numbers);

}  // namespace anymps::runtime
