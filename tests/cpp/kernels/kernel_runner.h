// Runs test kernels over host vectors.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernel_library.h"
#include "runtime/allocator.h"
#include "runtime/command_encoder.h"

namespace anymps::kernels {

// A copy of a vector in device memory.
class DeviceArray {
  public:
    explicit DeviceArray(size_t bytes) : data_(runtime::allocator().allocate(bytes)), bytes_(bytes) {}
    template <class T>
    explicit DeviceArray(const std::vector<T>& host) : DeviceArray(host.size() * sizeof(T)) {
        runtime::encoder().upload(address(), host.data(), bytes_);
    }
    uint64_t address() const { return reinterpret_cast<uint64_t>(data_.get()); }
    runtime::Access access(bool write) const { return {address(), bytes_, write}; }
    template <class T>
    std::vector<T> download() const {
        std::vector<T> host(bytes_ / sizeof(T));
        runtime::encoder().download(host.data(), address(), bytes_);
        return host;
    }

  private:
    c10::DataPtr data_;
    size_t bytes_;
};

template <class Args>
void run(const char* kernel, std::initializer_list<uint32_t> specialization, const Args& args,
         runtime::Grid grid, std::initializer_list<runtime::Access> accesses) {
    const auto& built = pipeline(kernel_id(kernel), std::span(specialization.begin(), specialization.size()));
    runtime::encoder().dispatch(built, &args, sizeof(args), grid,
                                std::span(accesses.begin(), accesses.size()));
}

}  // namespace anymps::kernels
