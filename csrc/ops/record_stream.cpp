// Tells the allocator that a stream uses a tensor's memory.
#include <anymps/ops/record_stream_ops.h>

#include <c10/core/Stream.h>

namespace anymps::ops {

// Nothing to note: the device's one stream is in order, and freed memory is used again in that order.
void ANYMPS_FUNC(record_stream)(Tensor& self, c10::Stream s) {
    TORCH_CHECK_VALUE(s.device() == self.device(), "record_stream: the tensor is on ", self.device(),
                      ", and the stream is of ", s.device());
}

}  // namespace anymps::ops
