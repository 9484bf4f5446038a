#include "runtime/hooks.h"

#include <c10/util/Registry.h>

#include <atomic>

#include "runtime/allocator.h"
#include "runtime/command_encoder.h"
#include "runtime/device.h"
#include "runtime/event.h"
#include "runtime/generator.h"
#include "runtime/host_allocator.h"
#include "runtime/stream.h"
#include "vulkan/device.h"

namespace anymps::runtime {

namespace {

std::atomic<bool> retired{false};

void check_index(at::DeviceIndex index) {
    TORCH_CHECK(is_own_index(index), "Invalid MPS device index ", static_cast<int>(index),
                ": there is one MPS device, mps:0");
}

}  // namespace

void retire_hooks() {
    retired = true;
}

void MPSHooks::init() const {
    device();
}

bool MPSHooks::isBuilt() const {
    return !retired;
}

bool MPSHooks::isAvailable() const {
    return !retired && device_available();
}

bool MPSHooks::hasPrimaryContext(at::DeviceIndex) const {
    return device_created();
}

void MPSHooks::setCurrentDevice(at::DeviceIndex index) const {
    check_index(index);
}

at::DeviceIndex MPSHooks::exchangeDevice(at::DeviceIndex index) const {
    check_index(index);
    return 0;
}

at::DeviceIndex MPSHooks::maybeExchangeDevice(at::DeviceIndex index) const {
    return exchangeDevice(index);
}

const at::Generator& MPSHooks::getDefaultGenerator(at::DeviceIndex) const {
    return default_generator();
}

at::Generator MPSHooks::getNewGenerator(at::DeviceIndex index) const {
    check_index(index);
    return at::make_generator<MPSGeneratorImpl>();
}

at::Device MPSHooks::getDeviceFromPtr(void*) const {
    return mps_device();
}

at::Allocator* MPSHooks::getMPSDeviceAllocator() const {
    return &allocator();
}

at::Allocator* MPSHooks::getPinnedMemoryAllocator() const {
    return pinned_allocator();
}

bool MPSHooks::isPinnedPtr(const void* data) const {
    return is_pinned(data);
}

void MPSHooks::emptyCache() const {
    allocator().emptyCache();
}

size_t MPSHooks::getCurrentAllocatedMemory() const {
    return allocator().allocated_bytes();
}

size_t MPSHooks::getDriverAllocatedMemory() const {
    return allocator().reserved_bytes();
}

size_t MPSHooks::getRecommendedMaxMemory() const {
    return allocator().recommended_bytes();
}

size_t MPSHooks::getMaxBufferLength() const {
    return allocator().max_allocation_bytes();
}

void MPSHooks::setMemoryFraction(double ratio) const {
    allocator().set_memory_fraction(ratio);
}

void MPSHooks::deviceSynchronize() const {
    synchronize_device();
}

void MPSHooks::commitStream() const {
    encoder().submit();
}

void* MPSHooks::getCommandBuffer() const {
    TORCH_CHECK(false, "The MPS device of this machine runs on Vulkan: it has no Metal command buffer");
}

void* MPSHooks::getDispatchQueue() const {
    TORCH_CHECK(false, "The MPS device of this machine runs on Vulkan: it has no Metal dispatch queue");
}

uint32_t MPSHooks::acquireEvent(bool enable_timing) const {
    return EventTable::instance().acquire(enable_timing);
}

void MPSHooks::releaseEvent(uint32_t event_id) const {
    EventTable::instance().release(event_id);
}

void MPSHooks::recordEvent(uint32_t event_id) const {
    EventTable::instance().get(event_id)->record();
}

void MPSHooks::waitForEvent(uint32_t event_id) const {
    EventTable::instance().get(event_id)->block();
}

void MPSHooks::synchronizeEvent(uint32_t event_id) const {
    EventTable::instance().get(event_id)->synchronize();
}

bool MPSHooks::queryEvent(uint32_t event_id) const {
    return EventTable::instance().get(event_id)->query();
}

double MPSHooks::elapsedTimeOfEvents(uint32_t start_event_id, uint32_t end_event_id) const {
    const auto& table = EventTable::instance();
    return Event::elapsed_ms(*table.get(start_event_id), *table.get(end_event_id));
}

void MPSHooks::profilerStartTrace(const std::string&, bool) const {
    TORCH_CHECK(
        false,
        "OS signposts exist on macOS only; use torch.profiler to trace the MPS device of this machine");
}

void MPSHooks::profilerStopTrace() const {}

}  // namespace anymps::runtime

namespace at {

using MPSHooks = anymps::runtime::MPSHooks;
C10_REGISTER_TYPED_CLASS(MPSHooksRegistry, "MPSHooks", MPSHooks)

}  // namespace at
