// The arguments of one operator call, moved to the CPU for the call and back after it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

namespace anymps::runtime {

// Owner: one fallback call, on one thread.
//
// A storage that several arguments share becomes one CPU storage, and a tensor that is passed twice one CPU
// tensor, so aliasing means the same on the CPU. On unified memory the CPU storage is the device's memory
// itself; elsewhere it is a copy of the bytes that the arguments span, and what was written goes back. Sparse
// tensors have no storage: they are copied.
class CpuArguments {
  public:
    // Takes the arguments of the call from the stack; waits for the device.
    CpuArguments(const c10::FunctionSchema& schema, const torch::jit::Stack& stack);

    // The arguments for the CPU: mps tensors (also in lists of lists), devices and generators replaced.
    std::vector<c10::IValue> on_cpu();

    // The dispatch keys of the call there: the CPU's, and those of its sparse formats that arguments have.
    c10::DispatchKeySet keys_on_cpu() const { return keys_on_cpu_; }

    // Brings arguments back that the operator may have written: their data, and their shape where it resized
    // them.
    void write_back();

    // The mps value of a result: the argument itself, a view of an argument's storage, or a copy on the
    // target device.
    c10::IValue to_device(const c10::IValue& result) const;

  private:
    // One device storage and its CPU twin, which begins at first_byte of it.
    struct SharedStorage {
        c10::Storage device;
        uint64_t first_byte = UINT64_MAX;
        uint64_t end_byte = 0;
        c10::Storage cpu;
        const void* cpu_data = nullptr;  // as handed out; another pointer after the call means a resize
        bool unified = false;
    };
    struct TensorPair {
        at::Tensor device;
        at::Tensor cpu;
    };

    void collect(const c10::IValue& value, bool written);
    static void make_cpu_storage(SharedStorage& shared);
    c10::IValue value_to_cpu(const c10::IValue& value);
    at::Tensor tensor_to_cpu(const at::Tensor& tensor);
    void write_back_value(const c10::IValue& value);
    void write_back_tensor(const TensorPair& pair);
    at::Tensor tensor_to_device(const at::Tensor& result) const;

    const c10::FunctionSchema& schema_;
    std::vector<c10::IValue> arguments_;
    c10::Device target_;
    c10::DispatchKeySet keys_on_cpu_{c10::DispatchKey::CPU};
    std::unordered_map<const c10::StorageImpl*, SharedStorage> storages_;  // by the device's storage
    std::unordered_map<const c10::StorageImpl*, const SharedStorage*> by_cpu_storage_;
    std::unordered_map<const c10::TensorImpl*, TensorPair> tensors_;  // by the argument
    std::unordered_map<const c10::TensorImpl*, const TensorPair*> by_cpu_tensor_;
};

}  // namespace anymps::runtime
