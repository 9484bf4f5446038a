// Lets mps live beside a CUDA build of PyTorch on a machine without an NVIDIA device.
//
// PyTorch allows one accelerator that is "built". Its CUDA hooks say they are, on every machine, and are kept
// for the life of the process before any plug-in is loaded. They are a heap object without data, so another
// class can take its place: it hands every question on to the original, and only denies being built.
#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/library.h>

#include <cstring>
#include <mutex>
#include <new>
#include <typeinfo>

#include "runtime/hooks.h"

namespace anymps::runtime {

namespace {

using Hooks = at::CUDAHooksInterface;
static_assert(sizeof(Hooks) == sizeof(void*),
              "the hooks are expected to hold nothing but their virtual table");

// A second object of the original class, made of its virtual table.
alignas(Hooks) std::byte original_storage[sizeof(Hooks)];
const Hooks& original() {
    return *std::launder(reinterpret_cast<const Hooks*>(original_storage));
}

class DormantCUDAHooks final : public Hooks {
  public:
    bool isBuilt() const override { return false; }

    bool isAvailable() const override { return original().isAvailable(); }
    bool hasPrimaryContext(at::DeviceIndex index) const override {
        return original().hasPrimaryContext(index);
    }
    void init() const override { original().init(); }
    at::DeviceIndex deviceCount() const override { return original().deviceCount(); }
    void setCurrentDevice(at::DeviceIndex index) const override { original().setCurrentDevice(index); }
    at::DeviceIndex getCurrentDevice() const override { return original().getCurrentDevice(); }
    at::DeviceIndex exchangeDevice(at::DeviceIndex index) const override {
        return original().exchangeDevice(index);
    }
    at::DeviceIndex maybeExchangeDevice(at::DeviceIndex index) const override {
        return original().maybeExchangeDevice(index);
    }
    bool isPinnedPtr(const void* data) const override { return original().isPinnedPtr(data); }
    at::Allocator* getPinnedMemoryAllocator() const override { return original().getPinnedMemoryAllocator(); }
    at::Device getDeviceFromPtr(void* data) const override { return original().getDeviceFromPtr(data); }
    const at::Generator& getDefaultGenerator(at::DeviceIndex index) const override {
        return original().getDefaultGenerator(index);
    }
    at::Generator getNewGenerator(at::DeviceIndex index) const override {
        return original().getNewGenerator(index);
    }

    bool hasCUDA() const override { return original().hasCUDA(); }
    bool hasCUDART() const override { return original().hasCUDART(); }
    bool hasMAGMA() const override { return original().hasMAGMA(); }
    bool hasCuDNN() const override { return original().hasCuDNN(); }
    bool hasCuSOLVER() const override { return original().hasCuSOLVER(); }
    bool hasCuBLASLt() const override { return original().hasCuBLASLt(); }
    bool hasROCM() const override { return original().hasROCM(); }
    bool hasCKSDPA() const override { return original().hasCKSDPA(); }
    bool hasCKGEMM() const override { return original().hasCKGEMM(); }
    const at::cuda::NVRTC& nvrtc() const override { return original().nvrtc(); }
    at::DeviceIndex current_device() const override { return original().current_device(); }
    at::Allocator* getCUDADeviceAllocator() const override { return original().getCUDADeviceAllocator(); }
    bool compiledWithCuDNN() const override { return original().compiledWithCuDNN(); }
    bool compiledWithMIOpen() const override { return original().compiledWithMIOpen(); }
    bool supportsDilatedConvolutionWithCuDNN() const override {
        return original().supportsDilatedConvolutionWithCuDNN();
    }
    bool supportsDepthwiseConvolutionWithCuDNN() const override {
        return original().supportsDepthwiseConvolutionWithCuDNN();
    }
    bool supportsBFloat16ConvolutionWithCuDNNv8() const override {
        return original().supportsBFloat16ConvolutionWithCuDNNv8();
    }
    bool supportsBFloat16RNNWithCuDNN() const override { return original().supportsBFloat16RNNWithCuDNN(); }
    long versionCuDNN() const override { return original().versionCuDNN(); }
    long versionRuntimeCuDNN() const override { return original().versionRuntimeCuDNN(); }
    long versionCuDNNFrontend() const override { return original().versionCuDNNFrontend(); }
    long versionMIOpen() const override { return original().versionMIOpen(); }
    long versionHipBLASLt() const override { return original().versionHipBLASLt(); }
    long versionCUDART() const override { return original().versionCUDART(); }
    std::string showConfig() const override { return original().showConfig(); }
    double batchnormMinEpsilonCuDNN() const override { return original().batchnormMinEpsilonCuDNN(); }
    int64_t cuFFTGetPlanCacheMaxSize(at::DeviceIndex index) const override {
        return original().cuFFTGetPlanCacheMaxSize(index);
    }
    void cuFFTSetPlanCacheMaxSize(at::DeviceIndex index, int64_t size) const override {
        original().cuFFTSetPlanCacheMaxSize(index, size);
    }
    int64_t cuFFTGetPlanCacheSize(at::DeviceIndex index) const override {
        return original().cuFFTGetPlanCacheSize(index);
    }
    void cuFFTClearPlanCache(at::DeviceIndex index) const override { original().cuFFTClearPlanCache(index); }
    int getNumGPUs() const override { return original().getNumGPUs(); }
    void deviceSynchronize(at::DeviceIndex index) const override { original().deviceSynchronize(index); }
};
static_assert(sizeof(DormantCUDAHooks) == sizeof(Hooks));

// True when CUDA's hooks stand in the way no more. False when they are of a class that is not known or a CUDA
// device is present: then the mps hooks retire, since two accelerators would make every backward raise.
bool neutralise_cuda_hooks() {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    const Hooks& hooks = at::detail::getCUDAHooks();
    if (!hooks.isBuilt()) return true;
    if (std::strcmp(typeid(hooks).name(), "N2at4cuda6detail9CUDAHooksE") != 0 || hooks.deviceCount() != 0) {
        retire_hooks();
        return false;
    }
    auto* place = const_cast<Hooks*>(&hooks);
    std::memcpy(original_storage, static_cast<const void*>(place), sizeof(Hooks));
    new (place) DormantCUDAHooks;
    return !at::detail::getCUDAHooks().isBuilt();
}

TORCH_LIBRARY_FRAGMENT(anymps, m) {
    m.def("neutralise_cuda_hooks() -> bool", &neutralise_cuda_hooks);
}

}  // namespace

}  // namespace anymps::runtime
