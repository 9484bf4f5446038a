// What a shader file tells its callers, as plain data: argument structs, specialization constants, kernels.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "slang_compiler.h"

namespace anymps::shader_compiler {

struct Field {
    std::string name;
    std::string type;  // in C++, of one element; a struct's name is qualified where it is another module's
    std::vector<size_t> counts;  // of an array (outermost dimension first), or of a vector
    size_t offset, bytes, alignment;
};

// Offsets and sizes as Slang lays the struct out in memory; bytes: with the padding at its end.
struct Struct {
    std::string module;  // that has it; empty: the shader file itself
    std::string name;
    std::vector<Field> fields;
    size_t bytes, alignment;
};

struct SpecializationConstant {
    uint32_t id;
    std::string name;  // as in the shader: kLanes
    bool is_bool;
    uint64_t value;  // unless the host names another
};

// A `static const` of a whole number at file scope.
struct Number {
    std::string name, type;
    std::string value;
};

struct KernelSignature {
    std::string name;
    std::string args;  // C++ name of the struct of its arguments
    bool by_pointer;   // its only parameter is a pointer to them
};

// The numbers among the generic arguments of one entry point's kernels.
struct Instances {
    std::string entry;
    std::vector<std::string> parameters;
    std::vector<std::pair<std::string, std::vector<std::string>>> values;  // by kernel
};

struct ModuleReflection {
    std::string module;                // empty: the shader file itself
    std::vector<std::string> imports;  // modules whose structs those of this one have
    std::vector<Struct> structs;       // each after those that it has
    std::vector<Number> numbers;
};

struct FileReflection {
    ModuleReflection own;
    std::vector<ModuleReflection> modules;          // that are loaded; structs: those that own ones reach
    std::vector<SpecializationConstant> constants;  // by id, those that hosts set
    std::vector<KernelSignature> kernels;
    std::vector<Instances> instances;
};

// libraries: modules by name. Throws CompileError where C++ cannot say the same.
FileReflection reflect(const CheckedFile& checked, const std::string& file,
                       const std::map<std::string, std::filesystem::path>& libraries);

}  // namespace anymps::shader_compiler
