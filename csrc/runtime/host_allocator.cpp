// What torch.accelerator asks of the host's memory: it is the CPU's, of which nothing is cached.
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CPUAllocator.h>

namespace anymps::runtime {
namespace {

class HostAllocator final : public at::HostAllocator {
  public:
    at::DataPtr allocate(size_t bytes) override { return c10::GetCPUAllocator()->allocate(bytes); }
    c10::DeleterFnPtr raw_deleter() const override { return c10::GetCPUAllocator()->raw_deleter(); }
    void copy_data(void* to, const void* from, size_t bytes) const override {
        default_copy_data(to, from, bytes);
    }
    bool record_event(void*, void*, c10::Stream) override { return false; }
    void empty_cache() override {}
    at::HostStats get_stats() override { return {}; }
    void reset_accumulated_stats() override {}
    void reset_peak_stats() override {}
};

struct RegisterHostAllocator {
    RegisterHostAllocator() { at::setHostAllocator(c10::DeviceType::MPS, new HostAllocator, 0); }
} register_host_allocator;

}  // namespace
}  // namespace anymps::runtime
