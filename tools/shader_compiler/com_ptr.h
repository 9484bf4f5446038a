// Owning pointer to one of Slang's reference-counted objects.
#pragma once

#include <utility>

namespace anymps::shader_compiler {

template <class T>
class ComPtr {
  public:
    ComPtr() = default;
    ComPtr(const ComPtr&) = delete;
    ComPtr& operator=(const ComPtr&) = delete;
    ComPtr(ComPtr&& other) noexcept : pointer_(std::exchange(other.pointer_, nullptr)) {}
    ~ComPtr() { reset(); }

    // Where a Slang function writes a new reference; drops the one held.
    T** receive() {
        reset();
        return &pointer_;
    }
    T* get() const { return pointer_; }
    T* operator->() const { return pointer_; }
    explicit operator bool() const { return pointer_ != nullptr; }

  private:
    void reset() {
        if (pointer_) std::exchange(pointer_, nullptr)->release();
    }

    T* pointer_ = nullptr;
};

}  // namespace anymps::shader_compiler
