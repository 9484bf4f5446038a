#include "compiler/slang_library.h"

#include <dlfcn.h>

#include <cstring>
#include <span>
#include <sstream>
#include <stdexcept>
#include <type_traits>

#include "com_ptr.h"
#include "compiler/push_constants.h"
#include "compiler/slang_files.h"
#include "compiler/slang_options.h"
#include "slang.h"
#include "spirv_patch.h"

namespace anymps::compiler {
namespace {

using shader_compiler::ComPtr;

constexpr const char* kEntryPoint = "main_kernel";
constexpr const char* kPath = "kernel.slang";
// A session keeps every module that it has loaded, about 1 MB a kernel.
constexpr unsigned kMaxKernels = 100;

using FunctionName = const char* (*)(SlangReflectionFunction*);
using CreateGlobalSession = SlangResult (*)(const SlangGlobalSessionDesc*, slang::IGlobalSession**);

std::string text_of(slang::IBlob* blob) {
    return blob ? std::string(static_cast<const char*>(blob->getBufferPointer()), blob->getBufferSize()) : "";
}

ComPtr<slang::IGlobalSession> global_session(void* create) {
    ComPtr<slang::IGlobalSession> result;
    const SlangGlobalSessionDesc desc{};
    if (SLANG_FAILED(reinterpret_cast<CreateGlobalSession>(create)(&desc, result.receive()))) {
        throw std::runtime_error("The Slang library could not create a global session.");
    }
    return result;
}

std::string numbered(const std::string& source) {
    std::ostringstream out;
    std::istringstream lines(source);
    int number = 0;
    for (std::string line; std::getline(lines, line);) {
        const std::string digits = std::to_string(++number);
        out << std::string(digits.size() < 4 ? 4 - digits.size() : 0, ' ') << digits << "  " << line << '\n';
    }
    return std::move(out).str();
}

// compile()'s result; its errors get the numbered source.
template <class Compile>
auto with_source(const std::string& source, Compile compile) {
    try {
        return compile();
    } catch (const std::runtime_error& error) {
        throw std::runtime_error(std::string(error.what()) + "\nThe source:\n" + numbered(source));
    }
}

}  // namespace

SlangLibrary::SlangLibrary(const std::string& path) : path_(path) {
    void* library = dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        throw std::runtime_error("The Slang library, which torch.compile needs, cannot be opened: " +
                                 std::string(dlerror()) + ".");
    }
    create_global_session_ = dlsym(library, "slang_createGlobalSession2");
    if (!create_global_session_) {
        throw std::runtime_error("The file " + path +
                                 " is not a Slang library that torch.compile can use: it has no function "
                                 "slang_createGlobalSession2.");
    }
    function_name_ = dlsym(library, "spReflectionFunction_GetName");
    // A global session knows the version too, but takes 200 ms that a warm cache need not spend.
    if (void* version = dlsym(library, "spGetBuildTagString")) {
        version_ = reinterpret_cast<const char* (*)()>(version)();
    } else {
        version_ = global_session(create_global_session_)->getBuildTagString();
    }
}

class SlangSession::Impl {
  public:
    Impl(const SlangLibrary& library, const SourceFolders& sources, ModuleCache& modules)
        : function_name_(reinterpret_cast<FunctionName>(library.function_name())),
          opened_(library.sessions()),
          sources_(sources),
          modules_(modules),
          files_(sources, modules),
          global_(global_session(library.create_global_session())) {}

    std::vector<uint32_t> compile(const std::string& source) {
        return retried([&] {
            slang::IModule* module = load(source);
            ComPtr<slang::IEntryPoint> entry;
            if (SLANG_FAILED(module->findEntryPointByName(kEntryPoint, entry.receive()))) {
                throw std::runtime_error(std::string("The source has no entry point ") + kEntryPoint + ".");
            }
            return words_of(module, entry.get());
        });
    }

    std::vector<std::pair<std::string, std::vector<uint32_t>>> compile_all(const std::string& source) {
        if (!function_name_) throw std::runtime_error("This Slang library cannot name entry points.");
        return retried([&] {
            slang::IModule* module = load(source);
            std::vector<std::pair<std::string, std::vector<uint32_t>>> all;
            for (SlangInt32 i = 0; i < module->getDefinedEntryPointCount(); ++i) {
                ComPtr<slang::IEntryPoint> entry;
                if (SLANG_FAILED(module->getDefinedEntryPoint(i, entry.receive()))) continue;
                auto* function = reinterpret_cast<SlangReflectionFunction*>(entry->getFunctionReflection());
                all.emplace_back(function_name_(function), words_of(module, entry.get()));
            }
            return all;
        });
    }

    void prepare(const std::string& source) { load(source); }

    void keep_modules() {
        for (SlangInt i = 0; session_ && i < session_->getLoadedModuleCount(); ++i) {
            slang::IModule* module = session_->getLoadedModule(i);
            const char* path = module->getFilePath();
            if (!path || !sources_.find(path) || !modules_.lacks(module_name(path))) continue;
            ComPtr<slang::IBlob> blob;
            if (SLANG_SUCCEEDED(module->serialize(blob.receive()))) {
                modules_.store(module_name(path), text_of(blob.get()));
            }
        }
    }

  private:
    // compile()'s result, of a second session where the first one had been used and fails.
    template <class Compile>
    std::invoke_result_t<Compile> retried(Compile compile) {
        if (kernels_ >= kMaxKernels) session_.receive();
        const bool used = session_.get() != nullptr;
        try {
            return compile();
        } catch (const std::runtime_error&) {
            // A failed import poisons the kernels after it, and a session that has specialized an interface
            // does not see the conformances of modules loaded later.
            session_.receive();
            if (!used) throw;
            return compile();
        }
    }

    void create_session() {
        slang::TargetDesc target;
        target.format = SLANG_SPIRV;
        target.profile = global_->findProfile(kProfile);
        target.flags = kTargetFlags;
        slang::CompilerOptionEntry no_warning;
        no_warning.name = slang::CompilerOptionName::DisableWarning;
        no_warning.value.kind = slang::CompilerOptionValueKind::String;
        no_warning.value.stringValue0 = kDisabledWarning;
        std::vector<const char*> paths;
        for (const std::string& name : sources_.names()) paths.push_back(name.c_str());

        slang::SessionDesc desc;
        desc.compilerOptionEntries = &no_warning;
        desc.compilerOptionEntryCount = 1;
        desc.targets = &target;
        desc.targetCount = 1;
        desc.searchPaths = paths.data();
        desc.searchPathCount = static_cast<SlangInt>(paths.size());
        desc.fileSystem = &files_;
        if (SLANG_FAILED(global_->createSession(desc, session_.receive()))) {
            throw std::runtime_error("The Slang library could not create a session.");
        }
        kernels_ = 0;
        ++opened_;
    }

    // Diagnostics, in which the source is called kernel.slang.
    std::string messages(const ComPtr<slang::IBlob>& diagnostics) const {
        std::string text = text_of(diagnostics.get());
        for (size_t at = 0; (at = text.find(path_, at)) != std::string::npos; at += std::strlen(kPath)) {
            text.replace(at, path_.size(), kPath);
        }
        return text;
    }

    void check(SlangResult result, const ComPtr<slang::IBlob>& diagnostics) const {
        if (SLANG_FAILED(result)) throw std::runtime_error(messages(diagnostics));
    }

    slang::IModule* load(const std::string& source) {
        if (!session_) create_session();
        const std::string name = "kernel_" + std::to_string(kernels_++);
        path_ = name + ".slang";  // a session takes a path once
        ComPtr<slang::IBlob> diagnostics;
        slang::IModule* module = session_->loadModuleFromSourceString(name.c_str(), path_.c_str(),
                                                                      source.c_str(), diagnostics.receive());
        if (!module) throw std::runtime_error(messages(diagnostics));
        return module;
    }

    std::vector<uint32_t> words_of(slang::IModule* module, slang::IEntryPoint* entry) {
        slang::IComponentType* parts[] = {module, entry};
        ComPtr<slang::IComponentType> program, linked;
        ComPtr<slang::IBlob> diagnostics, code;
        check(session_->createCompositeComponentType(parts, 2, program.receive(), diagnostics.receive()),
              diagnostics);
        check(program->link(linked.receive(), diagnostics.receive()), diagnostics);
        check(linked->getEntryPointCode(0, 0, code.receive(), diagnostics.receive()), diagnostics);
        std::vector<uint32_t> words(code->getBufferSize() / sizeof(uint32_t));
        std::memcpy(words.data(), code->getBufferPointer(), words.size() * sizeof(uint32_t));
        check_parameters(words);
        return shader_compiler::patch_spirv(words);
    }

    // Slang's reflection would need more functions of the library than the one that is looked up.
    static void check_parameters(std::span<const uint32_t> words) {
        const size_t pushed = push_constant_bytes(words);
        if (pushed <= kPushConstantBytes) return;
        throw std::runtime_error("The kernel has " + std::to_string(pushed) +
                                 " bytes of uniform parameters; push constants hold " +
                                 std::to_string(kPushConstantBytes) +
                                 ". Pass a pointer to a struct instead.");
    }

    const FunctionName function_name_;
    std::atomic<uint64_t>& opened_;
    const SourceFolders& sources_;
    ModuleCache& modules_;
    SlangFiles files_;
    ComPtr<slang::IGlobalSession> global_;
    ComPtr<slang::ISession> session_;
    unsigned kernels_ = 0;  // compiled in this session
    std::string path_;      // of the last one
};

SlangSession::SlangSession(const SlangLibrary& library, const SourceFolders& sources, ModuleCache& modules)
    : impl_(std::make_unique<Impl>(library, sources, modules)) {}
SlangSession::~SlangSession() = default;

std::vector<uint32_t> SlangSession::compile(const std::string& source) {
    return with_source(source, [&] { return impl_->compile(source); });
}

std::vector<std::pair<std::string, std::vector<uint32_t>>> SlangSession::compile_all(
    const std::string& source) {
    return with_source(source, [&] { return impl_->compile_all(source); });
}

void SlangSession::prepare(const std::string& source) {
    impl_->prepare(source);
}

void SlangSession::keep_modules() {
    impl_->keep_modules();
}

}  // namespace anymps::compiler
