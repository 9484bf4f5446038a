#include "runtime/cpu_arguments.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/List.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>

#include "runtime/address_map.h"
#include "runtime/command_encoder.h"
#include "runtime/command_graph.h"
#include "runtime/generator.h"
#include "runtime/sparse_members.h"
#include "runtime/stream.h"
#include "runtime/unified_memory.h"

namespace anymps::runtime {

namespace {

// Copies of a part of a storage begin at a multiple of this, so that views of any dtype stay aligned.
constexpr uint64_t kAlignment = 64;

uint64_t address_of(const c10::Storage& storage) {
    return reinterpret_cast<uint64_t>(storage.data());
}

// Bytes of its storage that a tensor reaches: {first, end}.
std::pair<uint64_t, uint64_t> span_of(const at::Tensor& tensor) {
    const uint64_t size = tensor.element_size();
    const uint64_t first = static_cast<uint64_t>(tensor.storage_offset()) * size;
    if (tensor.numel() == 0) return {first, first};
    uint64_t last = 0;
    for (int64_t dim = 0; dim < tensor.dim(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
    return {first, first + (last + 1) * size};
}

bool holds_tensors(const c10::IValue& value) {
    if (!value.isList()) return false;
    switch (value.toListRef().empty() ? c10::TypeKind::IntType : value.toList().elementType()->kind()) {
        case c10::TypeKind::TensorType:
        case c10::TypeKind::OptionalType:
        case c10::TypeKind::ListType:
            return true;
        default:
            return false;
    }
}

// A CPU generator that stands for the next numbers of an mps generator (the default one when there is none).
at::Generator continue_on_cpu(const std::optional<at::Generator>& generator) {
    check_not_capturing("An operator that draws its random numbers on the CPU");
    const PhiloxState state = reserve_philox(generator, kNumbersPerBlock);
    // splitmix64's finalizer: neighbouring offsets must not give neighbouring seeds.
    uint64_t mixed = state.seed + 0x9e3779b97f4a7c15 * (state.offset + 1);
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    return at::make_generator<at::CPUGeneratorImpl>(mixed ^ (mixed >> 31));
}

// A tensor over a storage with the layout, conjugate and negative bits of another.
at::Tensor tensor_over(c10::Storage storage, c10::DispatchKey key, int64_t storage_offset,
                       const at::Tensor& like) {
    auto tensor =
        at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
    auto* impl = tensor.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(like.sizes(), like.strides(), storage_offset);
    impl->_set_conj(like.is_conj());
    impl->_set_neg(like.is_neg());
    if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
    return tensor;
}

// Raw bytes where the layouts agree, otherwise a strided copy. Both tensors have the same sizes, dtype and
// bits.
void copy_to_device(const at::Tensor& cpu, const at::Tensor& device) {
    if (cpu.numel() == 0) return;
    if (cpu.strides() == device.strides() && cpu.is_non_overlapping_and_dense()) {
        encoder().upload(reinterpret_cast<uint64_t>(device.const_data_ptr()), cpu.const_data_ptr(),
                         cpu.nbytes());
    } else {
        device.copy_(cpu);
    }
}

// The device's storage takes the memory of the CPU's that was resized, where that is the device's too.
bool take_over(const c10::Storage& device, const c10::Storage& cpu) {
    c10::DataPtr memory = device_memory_of(cpu);
    if (!memory) return false;
    auto* impl = device.unsafeGetStorageImpl();
    if (memory.get() != device.data()) impl->set_data_ptr_noswap(std::move(memory));
    impl->set_nbytes(cpu.nbytes());
    return true;
}

}  // namespace

CpuArguments::CpuArguments(const c10::FunctionSchema& schema, const torch::jit::Stack& stack)
    : schema_(schema),
      arguments_(stack.end() - static_cast<ptrdiff_t>(schema.arguments().size()), stack.end()),
      target_(mps_device()) {
    for (size_t i = 0; i < arguments_.size(); ++i) {
        const auto* alias = schema.arguments()[i].alias_info();
        collect(arguments_[i], alias != nullptr && alias->isWrite());
    }
    if (!storages_.empty()) encoder().synchronize();
    for (auto& [device, shared] : storages_) {
        make_cpu_storage(shared);
        by_cpu_storage_.emplace(shared.cpu.unsafeGetStorageImpl(), &shared);
    }
}

void CpuArguments::collect(const c10::IValue& value, bool written) {
    if (value.isDevice()) {
        target_ = value.toDevice();
    } else if (holds_tensors(value)) {
        for (const c10::IValue& element : value.toListRef()) collect(element, written);
    } else if (value.isTensor()) {
        const at::Tensor& tensor = value.toTensor();
        if (!tensor.defined() || !tensor.is_mps() || tensor._is_zerotensor()) return;
        if (tensor.layout() != c10::kStrided) {
            const bool coordinates = tensor.layout() == c10::kSparse;
            keys_on_cpu_ =
                keys_on_cpu_.add(coordinates ? c10::DispatchKey::SparseCPU : c10::DispatchKey::SparseCsrCPU);
            return;
        }
        auto* storage = tensor.storage().unsafeGetStorageImpl();
        if (written) storage->mutable_data_ptr();  // a copy-on-write storage gets memory of its own
        SharedStorage& shared = storages_[storage];
        shared.device = tensor.storage();
        const auto [first, end] = span_of(tensor);
        shared.first_byte = std::min(shared.first_byte, first / kAlignment * kAlignment);
        shared.end_byte = std::max(shared.end_byte, end);
    }
}

void CpuArguments::make_cpu_storage(SharedStorage& shared) {
    const uint64_t bytes = shared.device.nbytes();
    // A tensor may claim to begin beyond an empty storage.
    shared.end_byte = std::min(shared.end_byte, bytes);
    shared.first_byte = std::min(shared.first_byte, shared.end_byte);
    auto* host = bytes == 0 ? nullptr : host_pointer(address_of(shared.device), bytes);
    if (host != nullptr) {
        shared.unified = true;
        shared.first_byte = 0;
        // The CPU tensor may outlive the call.
        c10::DataPtr data = pointer_into(host, shared.device, c10::Device(c10::DeviceType::CPU));
        shared.cpu =
            c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(data), unified_allocator(), true);
    } else {
        const uint64_t used = shared.end_byte - shared.first_byte;
        // What the operator makes of an empty one is a result.
        auto* memory = used == 0 ? unified_allocator() : c10::GetCPUAllocator();
        shared.cpu = c10::Storage(c10::Storage::use_byte_size_t(), used, memory, true);
        if (used > 0) {
            encoder().download(shared.cpu.mutable_data(), address_of(shared.device) + shared.first_byte,
                               used);
        }
    }
    shared.cpu_data = shared.cpu.data();
}

std::vector<c10::IValue> CpuArguments::on_cpu() {
    std::vector<c10::IValue> values;
    values.reserve(arguments_.size());
    for (size_t i = 0; i < arguments_.size(); ++i) {
        const auto& type = *schema_.arguments()[i].type();
        const bool absent_generator = arguments_[i].isNone() && type.kind() == c10::TypeKind::OptionalType &&
                                      type.containedType(0)->kind() == c10::TypeKind::GeneratorType;
        values.push_back(absent_generator ? c10::IValue(continue_on_cpu(std::nullopt))
                                          : value_to_cpu(arguments_[i]));
    }
    return values;
}

c10::IValue CpuArguments::value_to_cpu(const c10::IValue& value) {
    if (value.isTensor()) return tensor_to_cpu(value.toTensor());
    if (value.isDevice()) return c10::Device(c10::DeviceType::CPU);
    if (value.isGenerator() && value.toGenerator().device().is_mps())
        return continue_on_cpu(value.toGenerator());
    if (!holds_tensors(value)) return value;
    c10::impl::GenericList list(value.toList().elementType());
    list.reserve(value.toListRef().size());
    for (const c10::IValue& element : value.toListRef()) list.push_back(value_to_cpu(element));
    return list;
}

at::Tensor CpuArguments::tensor_to_cpu(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_mps()) return tensor;
    if (tensor._is_zerotensor())
        return at::zeros(tensor.sizes(), tensor.options().device(c10::DeviceType::CPU));
    const auto* key = tensor.unsafeGetTensorImpl();
    if (const auto known = tensors_.find(key); known != tensors_.end()) return known->second.cpu;
    at::Tensor cpu;
    if (tensor.layout() == c10::kStrided) {
        const SharedStorage& shared = storages_.at(tensor.storage().unsafeGetStorageImpl());
        const int64_t shift = static_cast<int64_t>(shared.first_byte / tensor.element_size());
        cpu = tensor_over(shared.cpu, c10::DispatchKey::CPU, tensor.storage_offset() - shift, tensor);
    } else {
        cpu = tensor.cpu();
    }
    const auto [entry, added] = tensors_.emplace(key, TensorPair{tensor, cpu});
    by_cpu_tensor_.emplace(entry->second.cpu.unsafeGetTensorImpl(), &entry->second);
    return entry->second.cpu;
}

void CpuArguments::write_back() {
    for (size_t i = 0; i < arguments_.size(); ++i) {
        const auto* alias = schema_.arguments()[i].alias_info();
        if (alias != nullptr && alias->isWrite()) write_back_value(arguments_[i]);
    }
}

void CpuArguments::write_back_value(const c10::IValue& value) {
    if (value.isTensor()) {
        const auto pair = tensors_.find(value.toTensor().unsafeGetTensorImpl());
        if (pair != tensors_.end()) write_back_tensor(pair->second);
    } else if (holds_tensors(value)) {
        for (const c10::IValue& element : value.toListRef()) write_back_value(element);
    }
}

void CpuArguments::write_back_tensor(const TensorPair& pair) {
    const auto& [device, cpu] = pair;
    if (device.layout() != c10::kStrided) {
        take_members(device, cpu.to(device.device()));
        return;
    }
    const SharedStorage& shared = storages_.at(device.storage().unsafeGetStorageImpl());
    const bool moved = cpu.storage().data() != shared.cpu_data;
    auto* impl = device.unsafeGetTensorImpl();
    if (moved && cpu.storage().is_alias_of(shared.cpu) && take_over(shared.device, cpu.storage())) {
        impl->set_sizes_and_strides(cpu.sizes(), cpu.strides(), cpu.storage_offset());
        return;
    }
    if (moved) {
        // A result that is part of a larger tensor has gaps, for which there is no memory here.
        device.resize_(cpu.sizes());
        if (cpu.is_non_overlapping_and_dense()) impl->set_sizes_and_strides(cpu.sizes(), cpu.strides());
    } else if (cpu.sizes() != device.sizes() || cpu.strides() != device.strides()) {
        const auto shift = static_cast<int64_t>(shared.first_byte / cpu.element_size());
        impl->set_sizes_and_strides(cpu.sizes(), cpu.strides(), cpu.storage_offset() + shift);
    }
    if (moved || !shared.unified) copy_to_device(cpu, device);
}

c10::IValue CpuArguments::to_device(const c10::IValue& result) const {
    if (result.isTensor()) return tensor_to_device(result.toTensor());
    if (!holds_tensors(result)) return result;
    c10::impl::GenericList list(result.toList().elementType());
    for (const c10::IValue& element : result.toListRef()) list.push_back(to_device(element));
    return list;
}

at::Tensor CpuArguments::tensor_to_device(const at::Tensor& result) const {
    if (!result.defined() || !target_.is_mps()) return result;
    if (const auto argument = by_cpu_tensor_.find(result.unsafeGetTensorImpl());
        argument != by_cpu_tensor_.end()) {
        return argument->second->device;
    }
    if (result.layout() != c10::kStrided) return result.to(target_);
    if (const auto found = by_cpu_storage_.find(result.storage().unsafeGetStorageImpl());
        found != by_cpu_storage_.end() && result.storage().data() == found->second->cpu_data) {
        const int64_t shift = static_cast<int64_t>(found->second->first_byte / result.element_size());
        return tensor_over(found->second->device, c10::DispatchKey::MPS, result.storage_offset() + shift,
                           result);
    }
    const at::Tensor plain = result.resolve_conj().resolve_neg();
    const at::Tensor dense = plain.is_non_overlapping_and_dense() ? plain : plain.contiguous();
    at::Tensor copy = at::empty_strided(dense.sizes(), dense.strides(), dense.options().device(target_));
    copy_to_device(dense, copy);
    if (result.unsafeGetTensorImpl()->is_wrapped_number())
        copy.unsafeGetTensorImpl()->set_wrapped_number(true);
    return copy;
}

}  // namespace anymps::runtime
