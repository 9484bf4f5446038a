// Why the host has waited in this process, and for how long.
#pragma once

#include <chrono>

namespace anymps::runtime {

enum class WaitReason {
    kDevice,    // for commands to complete
    kCompiler,  // for the driver to compile a kernel
    kMemory,    // for the driver to give memory
};

// The host waits while it lives. For waits that take microseconds at least: it reads a clock twice.
class WaitScope {
  public:
    explicit WaitScope(WaitReason reason) : reason_(reason), begin_(std::chrono::steady_clock::now()) {}
    ~WaitScope();
    WaitScope(const WaitScope&) = delete;
    WaitScope& operator=(const WaitScope&) = delete;

  private:
    WaitReason reason_;
    std::chrono::steady_clock::time_point begin_;
};

}  // namespace anymps::runtime
