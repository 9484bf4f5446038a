#include "header_writer.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "files.h"
#include "slang_compiler.h"

namespace anymps::shader_compiler {

namespace {

std::string cpp_name(const std::string& name) {
    static const std::set<std::string> keywords{
        "and",   "auto",     "bool",  "char",   "class",    "default",  "delete", "do",
        "float", "int",      "long",  "new",    "not",      "operator", "or",     "short",
        "this",  "template", "union", "signed", "unsigned", "using",    "xor",    "double"};
    if (keywords.contains(name)) throw CompileError("The name " + name + " in a shader is a keyword of C++.");
    return name;
}

// kWideIndex: wide_index. The first two ids are what the pipeline knows by position.
std::string constant_name(const SpecializationConstant& constant) {
    if (constant.id == 0) return "workgroup";
    if (constant.id == 1) return "subgroup";
    std::string result;
    const bool prefixed =
        constant.name.size() > 1 && constant.name[0] == 'k' && std::isupper(constant.name[1]);
    for (size_t i = prefixed ? 1 : 0; i < constant.name.size(); ++i) {
        const char letter = constant.name[i];
        if (std::isupper(letter) && !result.empty()) result += '_';
        result += static_cast<char>(std::tolower(letter));
    }
    return cpp_name(result);
}

std::string array_of(const Field& field) {
    std::string type = field.type;
    for (size_t i = field.counts.size(); i-- > 0;)
        type = "std::array<" + type + ", " + std::to_string(field.counts[i]) + ">";
    return type;
}

// As C++ lays the fields out by itself, with bytes added where Slang leaves more of them.
std::string text_of(const Struct& s) {
    std::string text = "struct " + s.name + " {\n", checks;
    size_t at = 0;
    for (const Field& field : s.fields) {
        const size_t natural = (at + field.alignment - 1) / field.alignment * field.alignment;
        if (field.offset > natural)
            text += "    std::array<uint8_t, " + std::to_string(field.offset - at) + "> padding_" +
                    std::to_string(at) + ";\n";
        text += "    " + array_of(field) + " " + cpp_name(field.name) + ";\n";
        checks += "static_assert(offsetof(" + s.name + ", " + field.name +
                  ") == " + std::to_string(field.offset) + ");\n";
        at = field.offset + field.bytes;
    }
    return text + "};\n" + checks + "static_assert(sizeof(" + s.name + ") == " + std::to_string(s.bytes) +
           ");\n\n";
}

std::string text_of(const ModuleReflection& module) {
    std::string text;
    for (const Number& number : module.numbers)
        text += "inline constexpr " + number.type + " " + number.name + " = " + number.value + ";\n";
    if (!module.numbers.empty()) text += '\n';
    for (const Struct& s : module.structs) text += text_of(s);
    return text;
}

std::string text_of(const std::vector<SpecializationConstant>& constants) {
    const uint32_t count = std::max(constants.empty() ? 0 : constants.back().id + 1, 2u);
    std::vector<std::string> values(count, "0");
    std::string fields;
    const auto add = [&](uint32_t id, const std::string& type, const std::string& name,
                         const std::string& value) {
        fields += "    " + type + " " + name + " = " + value + ";\n";
        values[id] = name;
    };
    if (constants.empty() || constants[0].id != 0) add(0, "uint32_t", "workgroup", "0");
    for (const SpecializationConstant& c : constants) {
        if (c.id > 1 && values[1] == "0") add(1, "uint32_t", "subgroup", "0");
        if (c.id == 1)
            add(1, "uint32_t", "subgroup", "0");
        else
            add(c.id, c.is_bool ? "bool" : "uint32_t", constant_name(c),
                c.is_bool ? (c.value ? "true" : "false") : std::to_string(c.value));
    }
    if (values[1] == "0") add(1, "uint32_t", "subgroup", "0");
    std::string text = "struct Constants {\n" + fields + "\n    std::array<uint32_t, " +
                       std::to_string(count) + "> values() const {\n        return {";
    for (size_t i = 0; i < values.size(); ++i) text += (i == 0 ? "" : ", ") + values[i];
    return text + "};\n    }\n};\n\n";
}

// SoftmaxArgs: SoftmaxKernel; LongRows: LongRowsKernel.
std::string kernel_type(const KernelSignature& kernel) {
    std::string name = kernel.args.substr(kernel.args.rfind(':') + 1);
    if (name.size() > 4 && name.ends_with("Args")) name.resize(name.size() - 4);
    return name + "Kernel";
}

std::string text_of(const std::vector<KernelSignature>& kernels) {
    std::string text;
    std::map<std::string, std::string> by_args;
    for (const KernelSignature& kernel : kernels) {
        const std::string type = kernel_type(kernel);
        std::string& names = by_args[kernel.args];
        if (names.empty())
            text += "using " + type + " =\n    kernels::Kernel<" + kernel.args +
                    ", Constants, kernels::Arguments::" + (kernel.by_pointer ? "kByPointer" : "kPushed") +
                    ">;\n";
        text += "inline constexpr " + type + " " + cpp_name(kernel.name) + "{\"" + kernel.name + "\"};\n";
        names += (names.empty() ? "" : ", ") + kernel.name;
    }
    text +=
        "\n// All kernels with these arguments.\n"
        "template <class Args>\ninline constexpr std::array<int, 0> kernels_with{};\n";
    for (const auto& [args, names] : by_args)
        text +=
            "template <>\ninline constexpr auto kernels_with<" + args + "> = std::array{" + names + "};\n";
    return text;
}

// The type of one entry point's rows, and a table of them.
std::string text_of(const Instances& instances) {
    std::string type, text, rows;
    bool upper = true;
    for (const char letter : instances.entry) {
        if (letter != '_') type += upper ? static_cast<char>(std::toupper(letter)) : letter;
        upper = letter == '_';
    }
    type += "Instance";
    text = "\n// The numbers among the generic arguments of " + instances.entry + ".\nstruct " + type +
           " {\n    std::string_view kernel;\n";
    for (std::string name : instances.parameters) {
        std::ranges::transform(name, name.begin(), [](unsigned char letter) { return std::tolower(letter); });
        text += "    int64_t " + cpp_name(name) + ";\n";
    }
    for (const auto& [kernel, values] : instances.values) {
        rows += (rows.empty() ? "\n    " : ",\n    ") + type + "{\"" + kernel + "\"";
        for (const std::string& value : values) rows += ", " + value;
        rows += "}";
    }
    return text + "};\ninline constexpr std::array " + instances.entry + "_instances{" + rows + "};\n";
}

// One header for the tables of all files: data that needs nothing of this package or PyTorch.
std::string instances_header(const std::vector<std::pair<std::filesystem::path, FileReflection>>& files) {
    std::string text =
        "// Generated by tools/shader_headers from shaders/.\n#pragma once\n\n#include <array>\n"
        "#include <cstdint>\n#include <string_view>\n";
    for (const auto& [file, reflection] : files) {
        if (reflection.instances.empty()) continue;
        const std::string space = "namespace anymps::shaders::" + file.stem().string();
        text += "\n" + space + " {\n";
        for (const Instances& instances : reflection.instances) text += text_of(instances);
        text += "}  // " + space + "\n";
    }
    return text;
}

std::string header(const std::filesystem::path& source, const std::string& includes,
                   const std::string& body) {
    const std::string space = source.stem().string();
    return "// Generated by tools/shader_headers from shaders/" + source.generic_string() +
           ".\n#pragma once\n\n" + "#include <array>\n#include <cstddef>\n#include <cstdint>\n" + includes +
           "\nnamespace anymps::shaders::" + space + " {\n\n" + body +
           "}  // namespace anymps::shaders::" + space + "\n";
}

std::filesystem::path header_path(std::filesystem::path source) {
    return source.replace_extension(".h");
}

void write_if_changed(const std::filesystem::path& file, const std::string& text) {
    if (std::filesystem::exists(file) && read_file(file) == text) return;
    std::filesystem::create_directories(file.parent_path());
    write_file(file, text);
}

// Structs of one module that several files reach.
void merge(ModuleReflection& into, const ModuleReflection& from, const std::filesystem::path& file) {
    into.numbers = from.numbers;
    for (const std::string& import : from.imports)
        if (std::ranges::find(into.imports, import) == into.imports.end()) into.imports.push_back(import);
    for (const Struct& s : from.structs) {
        const auto known = std::ranges::find(into.structs, s.name, &Struct::name);
        if (known == into.structs.end())
            into.structs.push_back(s);
        else if (text_of(*known) != text_of(s))
            throw CompileError(file.string() + ": the struct " + s.name + " of the module " + from.module +
                               " is laid out differently for another file.");
    }
}

}  // namespace

void write_headers(const std::filesystem::path& folder,
                   const std::vector<std::pair<std::filesystem::path, FileReflection>>& files,
                   const std::map<std::string, std::filesystem::path>& libraries) {
    std::map<std::string, ModuleReflection> modules;
    for (const auto& [name, path] : libraries) modules[name].module = name;
    const auto includes_of = [&](const ModuleReflection& module) {
        std::string includes;
        for (const std::string& import : module.imports)
            includes +=
                "#include <anymps/shaders/" + header_path(libraries.at(import)).generic_string() + ">\n";
        return includes;
    };
    for (const auto& [file, reflection] : files) {
        for (const ModuleReflection& module : reflection.modules) merge(modules[module.module], module, file);
        std::string body = text_of(reflection.own) + text_of(reflection.constants);
        std::set<std::string> used;
        for (const KernelSignature& kernel : reflection.kernels)
            if (kernel.args.starts_with("shaders::") && used.insert(kernel.args).second)
                body += "using " + kernel.args + ";\n";
        body += text_of(reflection.kernels);
        write_if_changed(
            folder / header_path(file),
            header(file, includes_of(reflection.own) + "\n#include \"kernels/kernel.h\"\n", body));
    }
    write_if_changed(folder / "instances.h", instances_header(files));
    for (const auto& [name, module] : modules)
        write_if_changed(folder / header_path(libraries.at(name)),
                         header(libraries.at(name), includes_of(module), text_of(module)));
}

}  // namespace anymps::shader_compiler
