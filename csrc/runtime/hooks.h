// What PyTorch asks of the MPS backend by name: torch.mps, torch.accelerator, torch.Generator.
#pragma once

#include <ATen/detail/MPSHooksInterface.h>

#include <string>

namespace anymps::runtime {

// Registered under "MPSHooks". getMPSHooks() of PyTorch keeps the first answer it gets for the whole process,
// so this library has to be loaded before anything asks. Nothing here opens the device but what needs it.
class MPSHooks final : public at::MPSHooksInterface {
  public:
    void init() const override;
    bool isBuilt() const override;
    bool isAvailable() const override;
    bool hasMPS() const override { return isAvailable(); }
    bool hasPrimaryContext(at::DeviceIndex) const override;
    // Libraries ask for a macOS version where they mean "does bf16 work": yes.
    bool isOnMacOSorNewer(unsigned, unsigned) const override { return true; }

    at::DeviceIndex deviceCount() const override { return isAvailable() ? 1 : 0; }
    at::DeviceIndex getCurrentDevice() const override { return 0; }
    void setCurrentDevice(at::DeviceIndex device) const override;
    at::DeviceIndex exchangeDevice(at::DeviceIndex device) const override;
    at::DeviceIndex maybeExchangeDevice(at::DeviceIndex device) const override;

    const at::Generator& getDefaultGenerator(at::DeviceIndex) const override;
    at::Generator getNewGenerator(at::DeviceIndex) const override;

    at::Device getDeviceFromPtr(void*) const override;
    at::Allocator* getMPSDeviceAllocator() const override;
    bool isPinnedPtr(const void* data) const override;
    at::Allocator* getPinnedMemoryAllocator() const override;

    void emptyCache() const override;
    size_t getCurrentAllocatedMemory() const override;
    size_t getDriverAllocatedMemory() const override;
    size_t getRecommendedMaxMemory() const override;
    size_t getMaxBufferLength() const override;
    void setMemoryFraction(double ratio) const override;

    void deviceSynchronize() const override;
    void commitStream() const override;
    // There is no Metal here; these raise saying so.
    void* getCommandBuffer() const override;
    void* getDispatchQueue() const override;

    uint32_t acquireEvent(bool enable_timing) const override;
    void releaseEvent(uint32_t event_id) const override;
    void recordEvent(uint32_t event_id) const override;
    void waitForEvent(uint32_t event_id) const override;
    void synchronizeEvent(uint32_t event_id) const override;
    bool queryEvent(uint32_t event_id) const override;
    double elapsedTimeOfEvents(uint32_t start_event_id, uint32_t end_event_id) const override;

    void profilerStartTrace(const std::string& mode, bool wait_until_completed) const override;
    void profilerStopTrace() const override;
};

// From now on PyTorch is told that there is no MPS backend: for a process in which another accelerator rules.
void retire_hooks();

}  // namespace anymps::runtime
