// Plans of convolutions: what is dispatched for a problem, in order, with tensors by number. A plan is made
// once for all calls of the same problem and executed for each.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kernels/declared_kernel.h"
#include "ops/conv/problem.h"
#include "runtime/grid.h"

namespace anymps::vulkan {
class Pipeline;
}

namespace anymps::ops {

// Which dispatches the device carries out, as it knows whether the scales of all operands are valid. Fused:
// always, by the sampled amax; the kernel computes the exact one of its im2col operand.
enum class When : uint8_t { Always, ScaleValid, Fused, Fallback };

// Number of the memory that the amax states lie in.
constexpr int32_t kAmaxStates = -2;

// One command. Dispatch: of a kernel. Zero: fills the first access. SumSplits: adds slices of the first
// access, f32 [slices, ...], into the second.
struct Pass {
    enum class Kind : uint8_t { Dispatch, Zero, SumSplits };
    struct Access {
        int32_t buffer;
        bool write;
        uint64_t offset = 0, bytes = 0;  // of amax states; else the whole tensor
    };
    // A 64-bit field of the arguments that the address of a buffer is added to.
    struct Address {
        uint32_t at;
        int32_t buffer;
    };

    Kind kind = Kind::Dispatch;
    When when = When::Always;
    bool by_pointer = false;  // arguments lie in memory, else they are pushed
    std::string kernel;
    std::vector<uint32_t> constants;
    const vulkan::Pipeline* pipeline = nullptr;  // set by prepare()
    runtime::Grid grid;
    std::vector<std::byte> args;
    std::vector<Address> addresses;
    std::vector<Access> accesses;
    std::vector<int32_t> last_of;  // buffers that no later pass uses
    double operations = 0;         // floating-point operations, for profiles and the estimate of its time
    double seconds = 0;            // of products, with their split-K, by the cost model; 0: not modelled
    std::string label;             // sizes, for profiles; empty: none are told
};

struct ConvPlan {
    struct Temporary {
        std::vector<int64_t> sizes;
        DType type;
        bool released = false;  // by a pass; else when all are recorded
    };

    std::vector<std::string> algorithms;  // of fprop, dgrad and wgrad, as far as they are wanted
    std::vector<Temporary> temporaries;   // numbers from kGiven on
    int64_t amax_count = 0;
    std::vector<Pass> passes;

    int64_t workspace_bytes() const;  // of all temporaries, not all of which live at once
};

// Sizes, algorithms and dispatches in a line, for ANYMPS_LOG=plan.
std::string to_text(const ConvProblem& problem, const ConvPlan& plan);

// A plan while it is made.
class PlanBuilder {
  public:
    PlanBuilder(const ConvProblem& problem, const ConvDevice& device) : problem(problem), device(device) {}

    const ConvProblem& problem;
    const ConvDevice device;
    ConvPlan plan;

    // Dense memory that a pass allocates when it is the first to use it.
    Memory temporary(std::vector<int64_t> sizes, DType type);
    // Ends the life of temporaries from number `first` on, but for one that is kept.
    void release(int32_t first, int32_t keep = kNoBuffer);
    int32_t next_temporary() const { return kGiven + static_cast<int32_t>(plan.temporaries.size()); }

    // "[2, 64, 9, 10]", for profiles.
    std::string sizes(const Memory& memory) const;
    void add(Pass::Kind kind, std::initializer_list<Pass::Access> accesses);
};

// One dispatch while it is planned: names what its arguments point to, then takes the arguments.
class PassWriter {
  public:
    PassWriter(PlanBuilder& builder, std::string_view kernel, bool by_pointer,
               std::span<const uint32_t> constants);
    template <class Args, class Constants, kernels::Arguments kArguments>
    PassWriter(PlanBuilder& builder, const kernels::Kernel<Args, Constants, kArguments>& kernel,
               const std::type_identity_t<Constants>& constants)
        : PassWriter(builder, kernel.name, kArguments == kernels::Arguments::kByPointer, constants.values()) {
    }

    // Sets a field of the arguments, which may not move until dispatch(), to the address of an element.
    PassWriter& address(uint64_t& field, const Memory& memory, int64_t offset = 0);
    // The same, of an AmaxState.
    PassWriter& amax(uint64_t& field, int32_t number);
    // The same, of all of them, and that the pass waits for them.
    PassWriter& amaxes(uint64_t& field);

    PassWriter& read(const Memory& memory) { return access(memory.buffer, false); }
    PassWriter& write(const Memory& memory) { return access(memory.buffer, true); }
    PassWriter& write_amax(int32_t number, bool sample = false);
    // A condition other than Always reads the states.
    PassWriter& when(When when);
    PassWriter& work(double operations, std::string label, double seconds = 0);

    template <class Args>
    void dispatch(const Args& args, runtime::Grid grid) {
        dispatch(&args, sizeof(args), grid);
    }
    void dispatch(const void* args, size_t bytes, runtime::Grid grid);

  private:
    PassWriter& access(int32_t buffer, bool write);
    PassWriter& read_amaxes();

    struct Field {
        uint64_t* field;
        int32_t buffer;
    };
    PlanBuilder& builder_;
    Pass pass_;
    std::vector<Field> fields_;
};

}  // namespace anymps::ops
