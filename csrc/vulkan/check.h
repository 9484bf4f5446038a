// Errors of the Vulkan layer: the failing call, its VkResult, the object and the place.
#pragma once

#include <stdexcept>
#include <string>

#include "vulkan/api.h"

namespace anymps::vulkan {

const char* result_name(VkResult result);

class Error : public std::runtime_error {
  public:
    Error(VkResult result, const std::string& what) : std::runtime_error(what), result_(result) {}
    VkResult result() const { return result_; }
    bool out_of_memory() const {
        return result_ == VK_ERROR_OUT_OF_DEVICE_MEMORY || result_ == VK_ERROR_OUT_OF_HOST_MEMORY ||
               result_ == VK_ERROR_TOO_MANY_OBJECTS;
    }

  private:
    VkResult result_;
};

[[noreturn]] void throw_error(VkResult result, const char* call, const char* file, int line);

}  // namespace anymps::vulkan

#define VK_CHECK(call)                                                                 \
    do {                                                                               \
        const VkResult vk_check_result = (call);                                       \
        if (vk_check_result < 0) {                                                     \
            ::anymps::vulkan::throw_error(vk_check_result, #call, __FILE__, __LINE__); \
        }                                                                              \
    } while (false)
