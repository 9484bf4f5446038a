#include "runtime/wait_counts.h"

#include <torch/library.h>

#include <atomic>
#include <string>
#include <tuple>
#include <vector>

namespace anymps::runtime {
namespace {

struct Count {
    const char* reason;
    std::atomic<int64_t> calls{0}, nanoseconds{0};
};
Count counts[] = {{"the device"}, {"the driver's compiler"}, {"memory from the driver"}};

}  // namespace

WaitScope::~WaitScope() {
    using namespace std::chrono;
    Count& count = counts[static_cast<int>(reason_)];
    count.calls.fetch_add(1, std::memory_order_relaxed);
    count.nanoseconds.fetch_add(duration_cast<nanoseconds>(steady_clock::now() - begin_).count(),
                                std::memory_order_relaxed);
}

namespace {

TORCH_LIBRARY_FRAGMENT(anymps, m) {
    // What for, how often, seconds.
    m.def("wait_counts() -> (str[], int[], float[])", [] {
        std::tuple<std::vector<std::string>, std::vector<int64_t>, std::vector<double>> result;
        for (const Count& count : counts) {
            std::get<0>(result).emplace_back(count.reason);
            std::get<1>(result).push_back(count.calls);
            std::get<2>(result).push_back(static_cast<double>(count.nanoseconds) * 1e-9);
        }
        return result;
    });
}

}  // namespace
}  // namespace anymps::runtime
