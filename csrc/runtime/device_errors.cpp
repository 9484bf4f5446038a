#include "runtime/device_errors.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include "runtime/stream_waits.h"

namespace anymps::runtime {
namespace {

constexpr uint32_t kWords = 64;
constexpr uint32_t kMessageCode = 1u << 30;  // the first code of errors with words of their own

}  // namespace

DeviceErrors::DeviceErrors(const vulkan::Device& device)
    : words_(device, kWords * sizeof(uint32_t), vulkan::MemoryKind::Ring) {
    std::memset(words_.host(), 0, words_.bytes());
}

ErrorSlot DeviceErrors::slot_of_op(const char* op) {
    const std::lock_guard lock(mutex_);
    const auto found = std::find(ops_.begin(), ops_.end(), op);
    const auto index = static_cast<uint32_t>(found - ops_.begin());
    if (found == ops_.end()) ops_.emplace_back(op);
    return {words_.address(), index + 1};
}

ErrorSlot DeviceErrors::slot_of_message(const std::string& message) {
    const std::lock_guard lock(mutex_);
    const auto next = static_cast<uint32_t>(messages_.size());
    const auto found = messages_.try_emplace(message, kMessageCode + next).first;
    return {words_.address(), found->second};
}

std::string DeviceErrors::message(uint32_t code) {
    const std::lock_guard lock(mutex_);
    if (code < kMessageCode) {
        return "index out of range in " + (code <= ops_.size() ? ops_[code - 1] : std::string("an operator"));
    }
    const auto found = std::find_if(messages_.begin(), messages_.end(),
                                    [&](const auto& entry) { return entry.second == code; });
    return found != messages_.end() ? found->first : "an assertion failed";
}

void DeviceErrors::check() {
    StreamWaits::instance().raise_failure();
    auto* words = reinterpret_cast<volatile uint32_t*>(words_.host());
    const uint32_t code = words[0];
    if (code == 0) return;
    words[0] = 0;
    throw c10::AcceleratorError({"check_errors", __FILE__, static_cast<uint32_t>(__LINE__)},
                                static_cast<int32_t>(code),
                                "MPS error: device-side assert triggered: " + message(code) +
                                    ". Kernel errors are reported at the next synchronization, so the "
                                    "stack trace may be of a later call.");
}

}  // namespace anymps::runtime
