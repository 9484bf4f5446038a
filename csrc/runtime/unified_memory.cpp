#include "runtime/unified_memory.h"

#include <c10/core/CPUAllocator.h>

#include "runtime/address_map.h"
#include "runtime/allocator.h"
#include "runtime/command_encoder.h"

namespace anymps::runtime {
namespace {

void release(void* device_memory) {
    delete static_cast<c10::DataPtr*>(device_memory);
}

class UnifiedAllocator final : public c10::Allocator {
  public:
    c10::DataPtr allocate(size_t bytes) override {
        if (bytes == 0) return c10::GetCPUAllocator()->allocate(0);
        c10::DataPtr device = allocator().allocate(bytes);
        auto* host = host_pointer(reinterpret_cast<uint64_t>(device.get()), bytes);
        if (host == nullptr) return c10::GetCPUAllocator()->allocate(bytes);
        encoder().synchronize();
        return {host, new c10::DataPtr(std::move(device)), &release, c10::Device(c10::DeviceType::CPU)};
    }
    void copy_data(void* to, const void* from, size_t bytes) const override {
        default_copy_data(to, from, bytes);
    }
};

}  // namespace

c10::Allocator* unified_allocator() {
    static auto* allocator = new UnifiedAllocator;
    return allocator;
}

c10::DataPtr pointer_into(void* memory, const c10::Storage& owner, c10::Device device) {
    const auto drop = [](void* storage) { delete static_cast<c10::Storage*>(storage); };
    return {memory, new c10::Storage(owner), drop, device};
}

c10::DataPtr device_memory_of(const c10::Storage& cpu) {
    const c10::DataPtr& data = cpu.data_ptr();
    if (data.get_deleter() != &release) return {};
    const auto* device = static_cast<const c10::DataPtr*>(data.get_context());
    return pointer_into(device->get(), cpu, device->device());
}

}  // namespace anymps::runtime
