// Operators without an mps kernel.
//
// Without PYTORCH_ENABLE_MPS_FALLBACK=1 (read at every call: libraries set it after `import torch`) they
// raise NotImplementedError in PyTorch's words; with it they run on the CPU, with one UserWarning an
// operator.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <map>
#include <string>

namespace anymps::runtime {

// The kernel that is registered for all operators of the MPS key.
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Runs the operator's CPU kernel on the arguments of an mps call: on unified memory without copies of them,
// elsewhere by one staging there and back. Thread-safe.
void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Calls that ran on the CPU since the start or the last reset, by operator ("aten::kthvalue").
std::map<std::string, int64_t> fallback_counts();
void reset_fallback_counts();

}  // namespace anymps::runtime
