// What generated registrations check of ATen's operators, for operators that are registered by hand.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/op_registration/adaption.h>

#include <initializer_list>
#include <optional>
#include <utility>

namespace anymps::ops {

// Raises PyTorch's RuntimeError, which names the operator's argument, unless all tensors that are defined are
// on one device.
inline void check_same_device(const char* op,
                              std::initializer_list<std::pair<const char*, const at::Tensor&>> arguments) {
    std::optional<at::Device> common;
    for (const auto& [name, tensor] : arguments) {
        c10::impl::check_and_update_common_device(common, tensor, op, name);
    }
}

}  // namespace anymps::ops
