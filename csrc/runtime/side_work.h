// What goes on beside the device's stream, such as collectives, for traces.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/command_origin.h"

namespace anymps::runtime {

struct SideWork {
    std::string name;
    CommandOrigin origin;  // of the call
    uint64_t bytes = 0;
    int64_t begin = 0, end = 0;  // nanoseconds since the epoch; 0: not yet
};

// While a trace is taken works are noted, when they are called for. Thread-safe.
void start_side_works();
bool taking_side_works();
std::shared_ptr<SideWork> note_side_work(std::string name, uint64_t bytes);
void begin_side_work(SideWork& work);
void end_side_work(SideWork& work);

// What was noted, in order. The device may be through with a work before the thread that looks after it has
// seen that: a work without a beginning lasts from its call, one without an end until now.
std::vector<SideWork> stop_side_works();

}  // namespace anymps::runtime
