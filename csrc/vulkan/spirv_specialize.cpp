#include "vulkan/spirv_specialize.h"

#include <unordered_set>

#include "vulkan/spirv_function.h"
#include "vulkan/spirv_module.h"

namespace anymps::vulkan {

std::vector<uint32_t> specialize(std::span<const uint32_t> spirv,
                                 std::span<const std::pair<uint32_t, uint32_t>> values, bool compact,
                                 std::span<const uint32_t> kept) {
    SpirvModule module(spirv, values, compact, kept);
    if (!module.known()) return {spirv.begin(), spirv.end()};
    SpecializedFunctions instances(module);
    std::vector<const SpecializedFunction*> reached{&instances.get(module.entry(), {}, module.entry())};
    std::unordered_set<const SpecializedFunction*> seen(reached.begin(), reached.end());
    std::vector<uint32_t> annotations, functions;
    for (size_t i = 0; i < reached.size(); ++i) {
        const SpecializedFunction& instance = *reached[i];
        annotations.insert(annotations.end(), instance.annotations.begin(), instance.annotations.end());
        functions.insert(functions.end(), instance.words.begin(), instance.words.end());
        for (const SpecializedFunction* callee : instance.calls)
            if (seen.insert(callee).second) reached.push_back(callee);
    }
    return module.assemble(annotations, functions);
}

}  // namespace anymps::vulkan
