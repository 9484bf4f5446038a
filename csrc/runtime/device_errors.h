// What kernels report to the host: one code, and the sentences that codes stand for.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/command_encoder.h"
#include "vulkan/buffer.h"

namespace anymps::runtime {

// Thread-safe. Owner: the encoder.
class DeviceErrors {
  public:
    explicit DeviceErrors(const vulkan::Device& device);

    // As CommandEncoder has them.
    ErrorSlot slot_of_op(const char* op);
    ErrorSlot slot_of_message(const std::string& message);

    // Raises what kernels have reported since the last time as torch.AcceleratorError.
    void check();

  private:
    std::string message(uint32_t code);

    vulkan::Buffer words_;
    std::mutex mutex_;  // guards the rest
    std::vector<std::string> ops_;
    std::unordered_map<std::string, uint32_t> messages_;  // and their codes
};

}  // namespace anymps::runtime
