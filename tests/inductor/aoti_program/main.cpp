// Runs a package of AOTInductor on mps without Python: main PACKAGE INPUT OUTPUT, files of torch.save's
// pickles.
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/serialize.h>

#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <vector>

namespace {

std::vector<char> bytes_of(const char* path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

int main(int argc, char** argv) try {
    if (argc != 4) return 2;
    const c10::InferenceMode no_gradients;
    torch::inductor::AOTIModelPackageLoader model(argv[1]);
    const at::Tensor input = torch::pickle_load(bytes_of(argv[2])).toTensor();
    const at::Tensor output = model.run({input.to("mps")})[0];
    if (!output.is_mps()) return 3;
    const std::vector<char> pickle = torch::pickle_save(output.cpu());
    std::ofstream(argv[3], std::ios::binary)
        .write(pickle.data(), static_cast<std::streamsize>(pickle.size()));
    return 0;
} catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
}
