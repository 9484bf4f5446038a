// A dispatch as its caller describes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/command_encoder.h"
#include "runtime/dispatch_time.h"
#include "runtime/hazards.h"

namespace anymps::runtime {

struct Launch {
    const vulkan::Pipeline& pipeline;
    std::span<const std::byte> args;
    bool in_ring;  // args go there and their address is pushed, or they are pushed
    Grid grid;
    uint64_t grid_address;  // where the grid is in memory, or 0
    std::span<const Access> accesses;
    DispatchWork work;
};

// The same with arguments and accesses of its own.
class OwnedLaunch {
  public:
    explicit OwnedLaunch(const Launch& launch)
        : launch_(launch),
          args_(launch.args.begin(), launch.args.end()),
          accesses_(launch.accesses.begin(), launch.accesses.end()) {}
    Launch get() const {
        Launch result = launch_;
        result.args = args_;
        result.accesses = accesses_;
        return result;
    }

  private:
    Launch launch_;
    std::vector<std::byte> args_;
    std::vector<Access> accesses_;
};

}  // namespace anymps::runtime
