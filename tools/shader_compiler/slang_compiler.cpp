#include "slang_compiler.h"

#include <cstring>
#include <set>

#include "files.h"
#include "kernel_rows.h"
#include "spirv_patch.h"

namespace anymps::shader_compiler {

namespace {

constexpr size_t kPushConstantBytes = 128;  // what every Vulkan device has

std::string text_of(slang::IBlob* blob) {
    return blob ? std::string(static_cast<const char*>(blob->getBufferPointer()), blob->getBufferSize()) : "";
}

}  // namespace

void SlangCompiler::create_session() {
    if (!global_ && SLANG_FAILED(slang::createGlobalSession(global_.receive()))) {
        throw CompileError("The Slang library could not create a global session.");
    }
    slang::TargetDesc target;
    target.format = SLANG_SPIRV;
    target.profile = global_->findProfile("spirv_1_5");
    target.flags = SLANG_TARGET_FLAG_GENERATE_SPIRV_DIRECTLY;

    std::vector<const char*> paths;
    for (const auto& dir : options_.include_dirs) paths.push_back(dir.c_str());
    std::vector<slang::PreprocessorMacroDesc> macros;
    for (const auto& define : options_.defines) macros.push_back({define.c_str(), "1"});

    // "Profile implicitly upgraded": spirv_1_5 is the floor, subgroup operations add their capabilities to
    // it.
    slang::CompilerOptionEntry no_upgrade_warning;
    no_upgrade_warning.name = slang::CompilerOptionName::DisableWarning;
    no_upgrade_warning.value.kind = slang::CompilerOptionValueKind::String;
    no_upgrade_warning.value.stringValue0 = "41012";

    slang::SessionDesc desc;
    desc.compilerOptionEntries = &no_upgrade_warning;
    desc.compilerOptionEntryCount = 1;
    desc.targets = &target;
    desc.targetCount = 1;
    desc.searchPaths = paths.data();
    desc.searchPathCount = static_cast<SlangInt>(paths.size());
    desc.preprocessorMacros = macros.data();
    desc.preprocessorMacroCount = static_cast<SlangInt>(macros.size());
    if (SLANG_FAILED(global_->createSession(desc, session_.receive()))) {
        throw CompileError("The Slang library could not create a session.");
    }
}

ComPtr<slang::IComponentType> SlangCompiler::link(slang::IModule* module, slang::IComponentType* entry,
                                                  const std::string& where) {
    ComPtr<slang::IBlob> diagnostics;
    slang::IComponentType* parts[] = {module, entry};
    ComPtr<slang::IComponentType> program, linked;
    if (SLANG_FAILED(
            session_->createCompositeComponentType(parts, 2, program.receive(), diagnostics.receive())) ||
        SLANG_FAILED(program->link(linked.receive(), diagnostics.receive())))
        throw CompileError(where + " does not compile:\n" + text_of(diagnostics.get()));
    return linked;
}

std::vector<uint32_t> SlangCompiler::generate(slang::IModule* module, slang::IComponentType* entry,
                                              const std::string& where) {
    const ComPtr<slang::IComponentType> linked = link(module, entry, where);
    // The uniform parameters come as one push-constant buffer; a kernel without any has a plain struct here.
    auto* parameters = linked->getLayout()->getEntryPointByIndex(0)->getTypeLayout();
    if (auto* element = parameters->getElementTypeLayout()) parameters = element;
    const size_t pushed = parameters->getSize();
    if (pushed > kPushConstantBytes) {
        throw CompileError(where + " has " + std::to_string(pushed) +
                           " bytes of uniform parameters; push constants " + "hold " +
                           std::to_string(kPushConstantBytes) + ". Pass a pointer to a struct instead.");
    }
    ComPtr<slang::IBlob> code, diagnostics;
    if (SLANG_FAILED(linked->getEntryPointCode(0, 0, code.receive(), diagnostics.receive())))
        throw CompileError(where + " does not compile:\n" + text_of(diagnostics.get()));
    std::vector<uint32_t> words(code->getBufferSize() / sizeof(uint32_t));
    std::memcpy(words.data(), code->getBufferPointer(), words.size() * sizeof(uint32_t));
    try {
        return with_read_only_arguments(patch_spirv(words));
    } catch (const std::runtime_error& error) {
        throw CompileError(where + ": " + error.what());
    }
}

template <class Result>
Result SlangCompiler::retry(Result (SlangCompiler::*in_session)(const std::filesystem::path&),
                            const std::filesystem::path& file) {
    const bool used = session_.get() != nullptr;
    try {
        return (this->*in_session)(file);
    } catch (const CompileError&) {
        // A session that has checked an instantiation does not see the conformances of modules loaded later.
        create_session();  // nor does a failed import poison the files after this one
        if (!used) throw;
        return (this->*in_session)(file);
    }
}

CompileResult SlangCompiler::compile(const std::filesystem::path& file) {
    return retry(&SlangCompiler::compile_in_session, file);
}

CheckedFile SlangCompiler::check(const std::filesystem::path& file) {
    return retry(&SlangCompiler::check_in_session, file);
}

slang::IModule* SlangCompiler::load(const std::filesystem::path& file, const std::string& source,
                                    std::string& warnings) {
    if (!session_) create_session();
    ComPtr<slang::IBlob> diagnostics;
    const std::string module_name = file.stem().string() + "_" + std::to_string(hash_bytes(file.string()));
    slang::IModule* module = session_->loadModuleFromSourceString(module_name.c_str(), file.c_str(),
                                                                  source.c_str(), diagnostics.receive());
    warnings = text_of(diagnostics.get());
    if (!module) throw CompileError(file.string() + " does not compile:\n" + warnings);
    return module;
}

namespace {

// `item`'s entry point in the module. Throws CompileError.
ComPtr<slang::IEntryPoint> instantiate(slang::IModule* module, const Instantiation& item,
                                       const std::string& where) {
    ComPtr<slang::IEntryPoint> entry;
    ComPtr<slang::IBlob> diagnostics;
    if (SLANG_FAILED(module->findAndCheckEntryPoint(item.expression.c_str(), SLANG_STAGE_COMPUTE,
                                                    entry.receive(), diagnostics.receive())))
        throw CompileError(where + " does not compile:\n" + text_of(diagnostics.get()));
    return entry;
}

// The entry points that are not generic, by their names.
std::vector<std::pair<std::string, ComPtr<slang::IEntryPoint>>> plain_entries(
    slang::IModule* module, const std::vector<Instantiation>& instantiations) {
    std::set<std::string> generic;
    for (const auto& item : instantiations) generic.insert(item.entry);
    std::vector<std::pair<std::string, ComPtr<slang::IEntryPoint>>> result;
    for (SlangInt32 i = 0; i < module->getDefinedEntryPointCount(); ++i) {
        ComPtr<slang::IEntryPoint> entry;
        module->getDefinedEntryPoint(i, entry.receive());
        const std::string name = entry->getFunctionReflection()->getName();
        if (!generic.count(name)) result.emplace_back(name, std::move(entry));
    }
    return result;
}

std::string place_of(const std::filesystem::path& file, const Instantiation& item) {
    return file.string() + ": kernel " + item.kernel + " = " + item.expression;
}

}  // namespace

CompileResult SlangCompiler::compile_in_session(const std::filesystem::path& file) {
    const std::string source = read_file(file);
    const auto instantiations = kernel_rows(source, file.string());
    CompileResult result;
    slang::IModule* module = load(file, source, result.warnings);
    for (SlangInt32 i = 0; i < module->getDependencyFileCount(); ++i) {
        result.read_files.push_back(module->getDependencyFilePath(i));
    }
    for (const auto& [name, entry] : plain_entries(module, instantiations)) {
        result.kernels.push_back({name, generate(module, entry.get(), file.string() + ": kernel " + name)});
    }
    for (const auto& item : instantiations) {
        const std::string where = place_of(file, item);
        const auto entry = instantiate(module, item, where);
        result.kernels.push_back({item.kernel, generate(module, entry.get(), where)});
    }
    if (result.kernels.empty()) throw CompileError(file.string() + " has no compute kernel.");
    return result;
}

CheckedFile SlangCompiler::check_in_session(const std::filesystem::path& file) {
    const std::string source = read_file(file);
    const auto instantiations = kernel_rows(source, file.string());
    std::string warnings;
    slang::IModule* module = load(file, source, warnings);
    CheckedFile result{session_.get(), module, {}};
    for (const auto& [name, entry] : plain_entries(module, instantiations)) {
        result.entries.push_back({{name}, {}, link(module, entry.get(), file.string() + ": kernel " + name)});
    }
    std::set<std::string> done;
    for (const auto& item : instantiations) {
        if (!done.insert(item.entry).second) continue;
        std::vector<std::string> kernels, expressions;
        for (const auto& other : instantiations) {
            if (other.entry != item.entry) continue;
            kernels.push_back(other.kernel);
            expressions.push_back(other.expression);
        }
        const std::string where = place_of(file, item);
        const auto entry = instantiate(module, item, where);
        result.entries.push_back(
            {std::move(kernels), std::move(expressions), link(module, entry.get(), where)});
    }
    return result;
}

}  // namespace anymps::shader_compiler
