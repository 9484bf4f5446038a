#include "reflection.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <regex>

#include "files.h"

namespace anymps::shader_compiler {

namespace {

constexpr uint32_t kFirstNamedId = 2;  // 0 and 1 are the sizes of workgroups and subgroups everywhere
constexpr uint32_t kFirstOwnId = 32;   // constants from here on are set by csrc/vulkan/pipeline.cpp

struct Scalar {
    const char* name;
    size_t bytes;
};

Scalar scalar_of(slang::TypeReflection* type) {
    using Type = slang::TypeReflection::ScalarType;
    switch (type->getScalarType()) {
        case Type::Bool:
            return {"uint32_t", 4};
        case Type::Int8:
            return {"int8_t", 1};
        case Type::UInt8:
            return {"uint8_t", 1};
        case Type::Int16:
            return {"int16_t", 2};
        case Type::UInt16:
            return {"uint16_t", 2};
        case Type::Int32:
            return {"int32_t", 4};
        case Type::UInt32:
            return {"uint32_t", 4};
        case Type::Int64:
            return {"int64_t", 8};
        case Type::UInt64:
            return {"uint64_t", 8};
        case Type::Float32:
            return {"float", 4};
        case Type::Float64:
            return {"double", 8};
        default:
            return {nullptr, 0};
    }
}

size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

// softmax_forward: SoftmaxForwardArgs.
std::string args_name(const std::string& entry) {
    std::string result;
    bool upper = true;
    for (const char letter : entry) {
        if (letter != '_') result += upper ? static_cast<char>(std::toupper(letter)) : letter;
        upper = letter == '_';
    }
    return result + "Args";
}

// "team" for lib/team.slang; empty for files that have kernels.
std::string library_module(slang::IModule* module,
                           const std::map<std::string, std::filesystem::path>& libraries) {
    const std::string name = std::filesystem::path(module->getFilePath()).stem().string();
    return libraries.contains(name) ? name : "";
}

bool same(const Struct& a, const Struct& b) {
    return a.bytes == b.bytes && std::ranges::equal(a.fields, b.fields, [](const Field& x, const Field& y) {
               return x.name == y.name && x.type == y.type && x.counts == y.counts && x.offset == y.offset;
           });
}

// Collects what the entry points of one module say.
class Reflector {
  public:
    Reflector(slang::ISession* session, slang::IModule* module, std::string file,
              const std::map<std::string, std::filesystem::path>& libraries);
    // Structs that the source names by `//! struct NAME`, as pointers lead to them.
    void add_marked(slang::ProgramLayout* linked, const std::string& source);
    void add_entry(slang::ProgramLayout* linked, const CheckedFile::Entry& checked);
    void add_instances(slang::EntryPointReflection* entry, const CheckedFile::Entry& checked);
    FileReflection finish();

  private:
    struct TypeName {
        std::string text;  // C++
        std::vector<size_t> counts;
        size_t bytes, alignment;
    };
    void read_module(slang::IModule* module, ModuleReflection& into);
    void add_constants(slang::ProgramLayout* linked);
    uint64_t default_of(slang::VariableLayoutReflection* constant) const;
    // from: the module in which the name stands; where: for errors.
    TypeName type_name(slang::TypeLayoutReflection* type, const std::string& from, const std::string& where);
    std::string add_struct(slang::TypeLayoutReflection* type, const std::string& from, size_t& bytes);
    std::vector<Field> fields_of(slang::TypeLayoutReflection* type, const std::string& from,
                                 const std::string& where);
    ModuleReflection& module_named(const std::string& name);

    slang::ISession* session_;
    std::string file_;
    FileReflection result_;
    std::vector<size_t> workgroups_;  // of entry points, as far as they are numbers
    std::vector<Struct> lists_;       // of uniform parameters
    std::vector<std::pair<slang::TypeReflection*, std::string>> struct_modules_;
};

Reflector::Reflector(slang::ISession* session, slang::IModule* module, std::string file,
                     const std::map<std::string, std::filesystem::path>& libraries)
    : session_(session), file_(std::move(file)) {
    for (SlangInt i = 0; i < session->getLoadedModuleCount(); ++i) {
        slang::IModule* loaded = session->getLoadedModule(i);
        const std::string name = library_module(loaded, libraries);
        if (!name.empty())
            read_module(loaded, result_.modules.emplace_back(ModuleReflection{name, {}, {}, {}}));
    }
    read_module(module, result_.own);
}

void Reflector::read_module(slang::IModule* module, ModuleReflection& into) {
    slang::DeclReflection* declarations = module->getModuleReflection();
    for (unsigned i = 0; i < declarations->getChildrenCount(); ++i) {
        slang::DeclReflection* child = declarations->getChild(i);
        if (child->getKind() == slang::DeclReflection::Kind::Struct) {
            struct_modules_.emplace_back(child->getType(), into.module);
        } else if (slang::VariableReflection* variable = child->asVariable()) {
            int64_t value = 0;
            const char* type = scalar_of(variable->getType()).name;
            if (!variable->findModifier(slang::Modifier::Static) || !type ||
                variable->getType()->getKind() != slang::TypeReflection::Kind::Scalar ||
                SLANG_FAILED(variable->getDefaultValueInt(&value)))
                continue;
            const bool is_unsigned = type[0] == 'u';
            into.numbers.push_back(
                {variable->getName(), type,
                 is_unsigned ? std::to_string(static_cast<uint64_t>(value)) + "u" : std::to_string(value)});
        }
    }
}

ModuleReflection& Reflector::module_named(const std::string& name) {
    if (name.empty()) return result_.own;
    return *std::ranges::find(result_.modules, name, &ModuleReflection::module);
}

Reflector::TypeName Reflector::type_name(slang::TypeLayoutReflection* type, const std::string& from,
                                         const std::string& where) {
    using Kind = slang::TypeReflection::Kind;
    switch (type->getKind()) {
        case Kind::Pointer:
            return {"uint64_t", {}, 8, 8};
        case Kind::Scalar:
            if (const Scalar scalar = scalar_of(type->getType()); scalar.name)
                return {scalar.name, {}, scalar.bytes, scalar.bytes};
            break;
        case Kind::Vector:
        case Kind::Array: {
            TypeName element = type_name(type->getElementTypeLayout(), from, where);
            const size_t count = type->getElementCount();
            if (type->getElementStride(SLANG_PARAMETER_CATEGORY_UNIFORM) != element.bytes)
                throw CompileError(where + " is an array with other strides than in C++. Pad its elements.");
            element.counts.insert(element.counts.begin(), count);
            element.bytes *= count;
            return element;
        }
        case Kind::Struct: {
            size_t bytes = 0;
            const std::string name = add_struct(type, from, bytes);
            return {name, {}, bytes, static_cast<size_t>(type->getAlignment())};
        }
        default:
            break;
    }
    throw CompileError(where + " has a type that a C++ header cannot have.");
}

std::vector<Field> Reflector::fields_of(slang::TypeLayoutReflection* type, const std::string& from,
                                        const std::string& where) {
    std::vector<Field> fields;
    for (unsigned i = 0; i < type->getFieldCount(); ++i) {
        slang::VariableLayoutReflection* field = type->getFieldByIndex(i);
        TypeName t = type_name(field->getTypeLayout(), from, where + ", field " + field->getName());
        if (!fields.empty() && field->getOffset() < fields.back().offset + fields.back().bytes)
            throw CompileError(where + ", field " + field->getName() +
                               " begins in the padding that C++ leaves at the end of " + fields.back().name +
                               ". Fill it with a field.");
        fields.push_back({field->getName(), t.text, t.counts, field->getOffset(), t.bytes, t.alignment});
    }
    return fields;
}

std::string Reflector::add_struct(slang::TypeLayoutReflection* type, const std::string& from, size_t& bytes) {
    const std::string name = type->getType()->getName();
    const auto known =
        std::ranges::find(struct_modules_, type->getType(), &decltype(struct_modules_)::value_type::first);
    if (known == struct_modules_.end())
        throw CompileError(file_ + ": kernels' arguments have the struct " + name +
                           ", which is generic or not declared at file scope.");
    const std::string module = known->second;
    Struct found{module, name, {}, 0, static_cast<size_t>(type->getAlignment())};
    found.fields = fields_of(type, module, file_ + ": struct " + name);
    found.bytes = bytes = round_up(type->getSize(), found.alignment);
    ModuleReflection& home = module_named(module);
    const auto before = std::ranges::find(home.structs, name, &Struct::name);
    if (before == home.structs.end()) {
        home.structs.push_back(std::move(found));
    } else if (!same(*before, found)) {
        throw CompileError(file_ + ": the struct " + name +
                           " is laid out in two ways: as uniform parameter and in "
                           "memory. Let vectors begin at multiples of their size.");
    }
    if (module == from || module.empty()) return name;
    auto& imports = module_named(from).imports;
    if (std::ranges::find(imports, module) == imports.end()) imports.push_back(module);
    return "shaders::" + module + "::" + name;
}

// The default of `const uint kType = kF32`, too, which reflection does not compute.
uint64_t Reflector::default_of(slang::VariableLayoutReflection* constant) const {
    int64_t value = 0;
    if (SLANG_SUCCEEDED(constant->getVariable()->getDefaultValueInt(&value)))
        return static_cast<uint64_t>(value);
    const std::regex pattern(std::string(R"(constant_id\(\d+\)\]\s*(?:public\s+)?const\s+\w+\s+)") +
                             constant->getName() + R"(\s*=\s*(\w+)\s*;)");
    std::vector<std::string> sources{file_};
    for (SlangInt i = 0; i < session_->getLoadedModuleCount(); ++i)
        sources.push_back(session_->getLoadedModule(i)->getFilePath());
    for (const std::string& source : sources) {
        const std::string text = read_file(source);
        std::smatch match;
        if (!std::regex_search(text, match, pattern)) continue;
        for (const ModuleReflection& module : result_.modules) {
            const auto number = std::ranges::find(module.numbers, match[1].str(), &Number::name);
            if (number != module.numbers.end()) return std::stoull(number->value);
        }
    }
    throw CompileError(file_ + ": the default of the specialization constant " + constant->getName() +
                       " is neither a number nor the name of one in a module.");
}

// An id has one name in a file and all that it imports: hosts set constants by name.
void Reflector::add_constants(slang::ProgramLayout* linked) {
    for (unsigned i = 0; i < linked->getParameterCount(); ++i) {
        slang::VariableLayoutReflection* parameter = linked->getParameterByIndex(i);
        if (parameter->getCategory() != slang::ParameterCategory::SpecializationConstant) continue;
        const auto id =
            static_cast<uint32_t>(parameter->getOffset(SLANG_PARAMETER_CATEGORY_SPECIALIZATION_CONSTANT));
        if (id >= kFirstOwnId) continue;
        const auto known = std::ranges::find(result_.constants, id, &SpecializationConstant::id);
        if (known != result_.constants.end()) {
            if (id >= kFirstNamedId && known->name != parameter->getName())
                throw CompileError(file_ + ": the specialization constants " + known->name + " and " +
                                   parameter->getName() + " have the same id, " + std::to_string(id) + ".");
            continue;
        }
        const bool is_bool = parameter->getType()->getScalarType() == slang::TypeReflection::ScalarType::Bool;
        result_.constants.push_back({id, parameter->getName(), is_bool, default_of(parameter)});
    }
}

// Arguments that are numbers stand for value parameters, in their order; nothing where one of these is a
// name.
void Reflector::add_instances(slang::EntryPointReflection* entry, const CheckedFile::Entry& checked) {
    slang::GenericReflection* generic = entry->getFunction()->getGenericContainer();
    if (!generic || generic->getValueParameterCount() == 0) return;
    Instances found{entry->getName(), {}, {}};
    for (unsigned i = 0; i < generic->getValueParameterCount(); ++i)
        found.parameters.push_back(generic->getValueParameter(i)->getName());
    static const std::regex number(R"([<,]\s*(-?\d+|true|false)(?=\s*[,>]))");
    for (size_t i = 0; i < checked.kernels.size(); ++i) {
        const std::string& text = checked.expressions[i];
        std::vector<std::string> values;
        for (std::sregex_iterator at(text.begin(), text.end(), number), end; at != end; ++at)
            values.push_back((*at)[1]);
        if (values.size() != found.parameters.size()) return;
        found.values.emplace_back(checked.kernels[i], std::move(values));
    }
    result_.instances.push_back(std::move(found));
}

void Reflector::add_entry(slang::ProgramLayout* linked, const CheckedFile::Entry& checked) {
    add_constants(linked);
    slang::EntryPointReflection* entry = linked->getEntryPointByIndex(0);
    const std::string where = file_ + ": kernel " + entry->getName();
    SlangUInt threads[3]{};
    entry->getComputeThreadGroupSize(3, threads);
    workgroups_.push_back(threads[0]);
    if (!checked.expressions.empty()) add_instances(entry, checked);
    std::vector<slang::VariableLayoutReflection*> uniforms;
    for (unsigned i = 0; i < entry->getParameterCount(); ++i) {
        slang::VariableLayoutReflection* parameter = entry->getParameterByIndex(i);
        if (parameter->getCategory() == slang::ParameterCategory::Uniform) uniforms.push_back(parameter);
    }
    if (uniforms.empty()) throw CompileError(where + " has no uniform parameter.");
    slang::TypeLayoutReflection* first = uniforms[0]->getTypeLayout();
    const bool by_pointer = uniforms.size() == 1 && first->getKind() == slang::TypeReflection::Kind::Pointer;
    if (by_pointer) first = first->getElementTypeLayout();
    std::string args;
    if (uniforms.size() == 1 && first->getKind() == slang::TypeReflection::Kind::Struct) {
        args = type_name(first, "", where).text;
    } else {
        Struct own{"", args_name(entry->getName()), {}, 0, 1};
        for (slang::VariableLayoutReflection* uniform : uniforms) {
            TypeName t = type_name(uniform->getTypeLayout(), "", where + ", parameter " + uniform->getName());
            own.fields.push_back(
                {uniform->getName(), t.text, t.counts, uniform->getOffset(), t.bytes, t.alignment});
            own.alignment = std::max(own.alignment, t.alignment);
        }
        own.bytes = round_up(own.fields.back().offset + own.fields.back().bytes, own.alignment);
        // Kernels with equal lists of parameters can be chosen from: they share the first one's struct.
        const auto equal =
            std::ranges::find_if(lists_, [&](const Struct& other) { return same(own, other); });
        args = equal != lists_.end() ? equal->name : own.name;
        if (equal == lists_.end()) {
            result_.own.structs.push_back(own);
            lists_.push_back(std::move(own));
        }
    }
    for (const std::string& kernel : checked.kernels) result_.kernels.push_back({kernel, args, by_pointer});
}

void Reflector::add_marked(slang::ProgramLayout* linked, const std::string& source) {
    static const std::regex pattern(R"((?:^|\n)//!\s*struct\s+(\w+))");
    for (std::sregex_iterator at(source.begin(), source.end(), pattern), end; at != end; ++at) {
        const std::string name = (*at)[1].str();
        slang::TypeReflection* pointer = linked->findTypeByName(("Ptr<" + name + ">").c_str());
        if (!pointer)
            throw CompileError(file_ + ": there is no struct " + name + ", which //! struct names.");
        size_t bytes = 0;
        add_struct(linked->getTypeLayout(pointer)->getElementTypeLayout(), "", bytes);
    }
}

FileReflection Reflector::finish() {
    // Where the size of workgroups is none of the constants, it is known here.
    if (std::ranges::find(result_.constants, 0u, &SpecializationConstant::id) == result_.constants.end() &&
        std::ranges::count(workgroups_, workgroups_[0]) == std::ranges::ssize(workgroups_))
        result_.constants.push_back({0, "kWorkgroup", false, workgroups_[0]});
    std::ranges::sort(result_.constants, {}, &SpecializationConstant::id);
    return std::move(result_);
}

}  // namespace

FileReflection reflect(const CheckedFile& checked, const std::string& file,
                       const std::map<std::string, std::filesystem::path>& libraries) {
    Reflector reflector(checked.session, checked.module, file, libraries);
    for (const CheckedFile::Entry& entry : checked.entries)
        reflector.add_entry(entry.linked->getLayout(), entry);
    if (!checked.entries.empty())
        reflector.add_marked(checked.entries[0].linked->getLayout(), read_file(file));
    return reflector.finish();
}

}  // namespace anymps::shader_compiler
