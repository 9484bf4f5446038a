// ANYMPS_LOG=plan and ANYMPS_LOG=dispatch: what was decided and what is launched, printed to stderr at once.
// The variable is read at the first question. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace anymps::runtime {

struct Launch;

// True where ANYMPS_LOG has the word `plan`. Callers make their text only then.
bool logs_plans();

// Prints "ANYMPS_LOG plan: <op> <text>", each distinct line once in a process. text: sizes, algorithm, tile,
// split_k, passes, expected microseconds.
void log_plan(std::string_view op, const std::string& text);

// True where ANYMPS_LOG has the word `dispatch`.
bool logs_dispatches();

// Prints the kernel's name, its specialization constants by id, grid, bytes of arguments and the
// microseconds that it takes on a slow device: dispatch_seconds(). Where these are more than a submission may
// take, or would where such devices are watched, also in how many parts it is recorded.
void log_dispatch(const Launch& launch);

}  // namespace anymps::runtime
