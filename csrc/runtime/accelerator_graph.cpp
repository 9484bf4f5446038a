// torch.accelerator.Graph of this device.
#include <ATen/core/GraphImplInterface.h>
#include <c10/util/Exception.h>

#include <fstream>

#include "runtime/command_graph.h"

namespace anymps::runtime {
namespace {

// Every capture mode behaves alike: other threads are never affected. There is nothing to instantiate.
class AcceleratorGraph final : public at::GraphImplInterface {
  public:
    explicit AcceleratorGraph(const at::GraphImplArgs&) {}

    void capture_begin(at::MempoolId_t pool, at::GraphCaptureMode) override { graph_.capture_begin(pool); }
    void capture_end() override { graph_.capture_end(); }
    void instantiate() override {}
    void replay() override { graph_.replay(); }
    void reset() override { graph_.reset(); }
    at::MempoolId_t pool() const override { return graph_.pool(); }
    void enable_debug_mode() override { graph_.keep_names(); }

    // A chain of the commands, in the language of Graphviz.
    void debug_dump(const std::string& path) override {
        TORCH_CHECK(!graph_.names().empty() || graph_.commands() == 0,
                    "debug_dump needs enable_debug_mode() before the capture");
        std::ofstream file(path);
        file << "digraph {\n";
        for (size_t i = 0; i < graph_.names().size(); ++i) {
            file << "  n" << i << " [label=\"" << graph_.names()[i] << "\"]\n";
            if (i > 0) file << "  n" << i - 1 << " -> n" << i << "\n";
        }
        file << "}\n";
        TORCH_CHECK(file.flush(), "debug_dump could not write ", path);
    }

  private:
    CommandGraph graph_;
};

}  // namespace
}  // namespace anymps::runtime

namespace at {
REGISTER_GRAPH_IMPL(MPS, anymps::runtime::AcceleratorGraph)
}
