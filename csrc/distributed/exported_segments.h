// Segments in memory that the ranks' devices export to each other.
#pragma once

#include <memory>

#include "distributed/agreement.h"
#include "distributed/segment_buffers.h"
#include "distributed/step_executor.h"

namespace anymps::distributed {

// For drivers that do not take the memory which the processes share: each device has its rank's segment in
// host memory of its own, which those of the others import; as an opaque file where all are one device, else
// as a dma-buf. nullptr where a rank does not offer that, or its driver refuses: the agreement is to be left
// then. Waits for the other ranks; throws as Agreement does.
std::unique_ptr<const SegmentBuffers> exchange_segments(Agreement& agreement);

// Whether every device reads what each of the others has written, also where it has read other data before.
// False in a rank where it is not so, which is to leave the agreement; and then in all.
bool verify_segments(StepExecutor& steps, Agreement& agreement);

}  // namespace anymps::distributed
