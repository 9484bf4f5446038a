// What goes on beside the device's stream, such as collectives, for traces.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/command_origin.h"

namespace anymps::runtime {

struct SideWork {
    std::string name;
    CommandOrigin origin;        // of the call
    int64_t begin = 0, end = 0;  // nanoseconds since the epoch
    uint64_t bytes = 0;
};

// While a trace is taken works are noted. Thread-safe.
void start_side_works();
std::vector<SideWork> stop_side_works();
bool taking_side_works();
void note_side_work(SideWork work);

}  // namespace anymps::runtime
