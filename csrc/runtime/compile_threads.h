// Threads in which the driver compiles pipelines, while the host goes on recording.
#pragma once

#include <cstddef>

namespace anymps::vulkan {
class Pipeline;
}

namespace anymps::runtime {

// Builds it soon, in a thread of as many as the host has cores, 16 at most. `words` is the size of its code:
// of those that wait the longest comes first, since a step ends with its last pipeline. It must live as long
// as the process.
void compile_later(const vulkan::Pipeline& pipeline, size_t words);

// Returns when nothing is being compiled any more: a driver must not be at work when the process ends.
void finish_compiling();

}  // namespace anymps::runtime
