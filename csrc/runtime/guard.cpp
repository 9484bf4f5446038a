// c10's view of the device: which is current, its stream, its events. One device, so setting it changes
// nothing.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "runtime/device.h"
#include "runtime/event.h"
#include "runtime/stream.h"
#include "runtime/stream_waits.h"

namespace anymps::runtime {

namespace {

// Every method but record, block and the synchronising ones works without opening the device: a backward pass
// on the CPU asks each registered guard for its device count.
class GuardImpl final : public c10::impl::DeviceGuardImplInterface {
  public:
    static constexpr c10::DeviceType static_type = c10::DeviceType::MPS;

    c10::DeviceType type() const override { return static_type; }

    c10::Device exchangeDevice(c10::Device device) const override {
        setDevice(device);
        return mps_device();
    }
    c10::Device getDevice() const override { return mps_device(); }
    void setDevice(c10::Device device) const override {
        TORCH_CHECK(device.is_mps(), "Expected a MPS device, but got ", device);
        TORCH_CHECK(is_own_index(device.index()), "Invalid MPS device index ",
                    static_cast<int>(device.index()), ": there is one MPS device, mps:0");
    }
    void uncheckedSetDevice(c10::Device) const noexcept override {}
    c10::DeviceIndex deviceCount() const noexcept override { return device_available() ? 1 : 0; }

    c10::DeviceCapability getDeviceCapability(c10::Device) const override {
        using namespace c10;  // the index constants
        constexpr uint64_t kOne = 1;
        DeviceCapability capability;
        capability.capability_data.capability_bits =
            kOne << kIndex_Byte | kOne << kIndex_Char | kOne << kIndex_Short | kOne << kIndex_Int |
            kOne << kIndex_Long | kOne << kIndex_Half | kOne << kIndex_Float | kOne << kIndex_ComplexFloat |
            kOne << kIndex_Bool | kOne << kIndex_BFloat16 | kOne << kIndex_UInt16 | kOne << kIndex_UInt32 |
            kOne << kIndex_UInt64;
        return capability;
    }

    c10::Stream getStream(c10::Device) const override { return stream_of(current_stream_id()); }
    c10::Stream getDefaultStream(c10::Device) const override { return default_stream(); }
    c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
        return stream_of(new_stream_id());
    }
    c10::Stream getNewStream(c10::Device, int) const override { return stream_of(new_stream_id()); }
    c10::Stream exchangeStream(c10::Stream stream) const override {
        return stream_of(exchange_stream_id(stream.id()));
    }
    bool queryStream(const c10::Stream& stream) const override { return stream_idle(stream); }
    void synchronizeStream(const c10::Stream& stream) const override { synchronize_stream(stream); }
    void synchronizeDevice(c10::DeviceIndex) const override { synchronize_device(); }

    void record(void** event, const c10::Stream& stream, c10::DeviceIndex device_index,
                c10::EventFlag flag) const override {
        if (*event == nullptr) *event = new Event(flag == c10::EventFlag::BACKEND_DEFAULT);
        as_event(*event).record(stream.id());
    }
    void block(void* event, const c10::Stream& stream) const override {
        if (event != nullptr) as_event(event).block(stream.id());
    }
    bool queryEvent(void* event) const override { return event == nullptr || as_event(event).query(); }
    void synchronizeEvent(void* event) const override {
        if (event != nullptr) as_event(event).synchronize();
    }
    double elapsedTime(void* start, void* end, c10::DeviceIndex) const override {
        TORCH_CHECK(start != nullptr && end != nullptr,
                    "Both events must be recorded before calculating elapsed time.");
        return Event::elapsed_ms(as_event(start), as_event(end));
    }
    void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
        delete static_cast<Event*>(event);
    }

  private:
    static Event& as_event(void* event) { return *static_cast<Event*>(event); }
};

C10_REGISTER_GUARD_IMPL(MPS, GuardImpl)

}  // namespace

}  // namespace anymps::runtime
