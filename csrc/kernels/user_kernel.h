// Kernels that users bring: SPIR-V whose workgroup size is chosen at the launch.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "runtime/command_encoder.h"
#include "runtime/hazards.h"
#include "vulkan/pipeline.h"

namespace anymps::kernels {

using GroupSize = std::array<uint32_t, 3>;

// Lives as long as the process: commands that are not done may use its pipelines. Thread-safe.
class UserKernel {
  public:
    // spirv: a module with the entry point "main", no descriptors, at most 128 bytes of push constants.
    // lanes: the subgroup size that the kernel counts on, 0 for the device's own. specialization: of the
    // constants from number 2 on; 0 is the threads of a workgroup and 1 is `lanes`. Raises ValueError for
    // a module that is something else, RuntimeError for one that is damaged.
    UserKernel(std::string name, std::span<const uint32_t> spirv, uint32_t lanes = 0,
               std::span<const uint32_t> specialization = {});

    const std::string& name() const { return name_; }
    std::span<const uint32_t> spirv() const { return spirv_; }
    // What [numthreads] says.
    const GroupSize& declared_group_size() const { return declared_; }

    // Records `groups` workgroups of `size` threads. args: pushed, or, above 128 bytes, copied and their
    // address pushed. Raises ValueError for a workgroup that the device does not take, and for more than
    // 65,535 workgroups in a dimension. Nothing is recorded where there are none.
    void dispatch(const void* args, size_t bytes, runtime::Grid groups, const GroupSize& size,
                  std::span<const runtime::Access> accesses);

    // A kernel whose arguments begin with a MetalLaunch; it is pushed their address. Runs exactly `threads`
    // threads: what is left at an edge is a launch of smaller workgroups, where `exact`, and else the kernel
    // returns at once for threads beyond.
    void dispatch_threads(void* args, size_t bytes, const GroupSize& threads, const GroupSize& size,
                          bool exact, std::span<const runtime::Access> accesses);

  private:
    const vulkan::Pipeline& pipeline(const GroupSize& size);

    const std::string name_;
    const std::vector<uint32_t> spirv_;
    const uint32_t lanes_;
    const std::vector<uint32_t> specialization_;
    GroupSize declared_{1, 1, 1};
    size_t size_at_ = 0;  // where the module says the workgroup's size; 0: by constants

    std::mutex mutex_;
    std::map<GroupSize, std::unique_ptr<vulkan::Pipeline>> pipelines_;
};

// What shaders/lib/metal.slang declares at the beginning of a kernel's arguments.
struct MetalLaunch {
    GroupSize threads;      // of the grid
    GroupSize group;        // threads of a workgroup that is whole
    GroupSize first_group;  // number of the first workgroup of this launch
    GroupSize group_here;   // threads of this launch's workgroups
};

}  // namespace anymps::kernels

// For torch_anymps._launcher. kernel: a UserKernel. mode: 0, `extent` counts workgroups (dispatch); 1, it
// counts threads (dispatch_threads); 2, and `exact` is set. Throws std::exception.
extern "C" void anymps_launch_user_kernel(void* kernel, void* args, size_t bytes, const uint32_t extent[3],
                                          const uint32_t group_size[3], int mode,
                                          const anymps::runtime::Access* accesses, size_t count);
