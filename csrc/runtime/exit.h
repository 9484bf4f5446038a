// What must be at rest before the interpreter goes.
#pragma once

namespace anymps::runtime {

// Ends the autograd threads and waits for the device. Called once by Python's atexit with the GIL released: a
// backward's last references to Python objects are dropped by autograd's device thread some time after
// backward() returned, and a thread that wants the GIL of a finalizing interpreter is killed inside a
// destructor, which aborts the process. No backward through the device may follow. Never throws.
void drain() noexcept;

// Has drain() call it first: for threads that nothing here knows of. Thread-safe; it must not throw.
void before_drain(void (*function)());

}  // namespace anymps::runtime
