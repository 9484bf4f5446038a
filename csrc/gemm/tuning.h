// Plans that were measured: kept in the cache folder by `python -m torch_anymps.tune`, preferred to the
// model's.
#pragma once

#include <string>

#include "gemm/tiles.h"

namespace anymps::gemm {

// The plan for a problem: the one that this thread wants where it is a candidate
// (torch.ops.anymps.want_plan), else the measured winner where there is one, else the model's. Remembered, so
// that the next call with the same problem costs a look-up. While tuning, calls try all candidates in turn,
// but for what rarely runs. Thread-safe.
Plan choose_plan(const vulkan::DeviceInfo& device, const GemmProblem& problem, bool cold = false);

// Another one where plans that callers remember are not to be used. 0 while tiles are tuned or plans listed:
// nothing is to be remembered then.
uint32_t plan_generation();

// The sizes that a profile shows for a dispatch of this plan: while tuning, they name the trial.
std::string profile_label(const Plan& plan, std::string sizes);

}  // namespace anymps::gemm
