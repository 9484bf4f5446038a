// Who asked for a command: the PyTorch operator and the thread, for profilers.
#pragma once

#include <cstdint>
#include <string>

namespace anymps::runtime {

struct CommandOrigin {
    uint64_t correlation = 0;       // of the innermost operator that runs in the thread; 0 for none
    uint64_t user_correlation = 0;  // of the innermost torch.profiler.record_function
    int32_t thread = 0;             // as the system numbers it
    int64_t host_begin = 0;         // of the call, in nanoseconds since the epoch
    int64_t host_end = 0;           // 0: when the command is recorded
    double operations = 0;          // floating-point; 0 where the launcher does not tell
    std::string shape;              // sizes as the launcher tells them, or empty
};

// Nanoseconds since the epoch.
int64_t host_time();
int32_t thread_number();

// Of a command that this thread asks for now, without what note_work() said.
CommandOrigin command_origin();

// What the next dispatch of this thread does; take_work() moves it into an origin.
void note_work(double operations, std::string shape);
void take_work(CommandOrigin& origin);

// The stacks of this thread. session: a number that changes when what is left of an earlier one is void.
void push_correlation(uint64_t session, uint64_t id);
void pop_correlation(uint64_t session);
// Returns what it is pushed upon, or 0.
uint64_t push_user_correlation(uint64_t session, uint64_t id);
void pop_user_correlation(uint64_t session);

}  // namespace anymps::runtime
