// Polyphase output of strided data gradients: each phase of the image as a contiguous plane. Vectorized
// stores and one pass over them take less time than scattered results.
#pragma once

#include "ops/conv/plan.h"
#include "ops/conv/problem.h"

namespace anymps::ops {

struct Phases {
    Memory planes;         // [phase, image...]: a temporary once the plan has one
    int64_t phase_stride;  // elements of a plane
    uint32_t present;      // bit mask of phases that have results

    // Of x, which is contiguous and whole phases of two columns; the planes of `present` ones.
    Phases(const ConvTensor& x, const ConvParams& params, int64_t groups, uint32_t present);

    static bool suit(const vulkan::DeviceInfo& device, const ConvTensor& x, const ConvParams& params,
                     int64_t groups);
    void allocate(PlanBuilder& builder);
    // Plans to make lines of x of them; of phases that are not present, zeros.
    void add_join(PlanBuilder& builder, const ConvTensor& x, const ConvParams& params) const;
};

}  // namespace anymps::ops
