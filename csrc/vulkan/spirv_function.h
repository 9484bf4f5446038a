// One function of a SPIR-V module for one set of constant arguments.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "vulkan/spirv_module.h"

namespace anymps::vulkan {

// What came of a function.
struct SpecializedFunction {
    uint32_t id = 0;
    std::vector<uint32_t> words;        // OpFunction to OpFunctionEnd
    std::vector<uint32_t> annotations;  // of its ids
    std::vector<const SpecializedFunction*> calls;
    bool pure = false;    // no effect on memory but through its result
    uint32_t result = 0;  // the constant that a pure function returns, if it is one
};

// All instances of a module's functions.
class SpecializedFunctions {
  public:
    explicit SpecializedFunctions(SpirvModule& module) : module_(module) {}

    // arguments: ids of constants, 0 where an argument is none. id: 0 for a new one.
    const SpecializedFunction& get(uint32_t function, const std::vector<uint32_t>& arguments,
                                   uint32_t id = 0);

  private:
    SpirvModule& module_;
    std::map<std::pair<uint32_t, std::vector<uint32_t>>, std::unique_ptr<SpecializedFunction>> instances_;
};

}  // namespace anymps::vulkan
