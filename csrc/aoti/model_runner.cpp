// How PyTorch's loader of AOTInductor packages runs those that were compiled for mps, from Python and from
// C++.
#include <torch/csrc/inductor/aoti_runner/model_container_runner.h>

#include <memory>
#include <string>

namespace {

using torch::inductor::AOTIModelContainerRunner;

class MpsRunner final : public AOTIModelContainerRunner {
  public:
    MpsRunner(const std::string& library, size_t models, const std::string& device, const std::string& folder,
              bool single_threaded)
        : AOTIModelContainerRunner(library, models, device, folder, single_threaded) {}
};

std::unique_ptr<AOTIModelContainerRunner> create(const std::string& library, size_t models,
                                                 const std::string& device, const std::string& folder,
                                                 const bool single_threaded) {
    return std::make_unique<MpsRunner>(library, models, device, folder, single_threaded);
}

const torch::inductor::RegisterAOTIModelRunner registration("mps", create);

}  // namespace
