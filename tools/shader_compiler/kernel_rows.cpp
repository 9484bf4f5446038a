#include "kernel_rows.h"

#include <map>
#include <regex>
#include <sstream>

#include "slang_compiler.h"

namespace anymps::shader_compiler {

namespace {

// Types of dtypes in shaders, by their part of kernels' names.
const std::map<std::string, std::string> kTypes{{"f32", "float"},   {"f16", "half"}, {"bf16", "BFloat16"},
                                                {"i64", "int64_t"}, {"i32", "int"},  {"c64", "Complex"}};

struct Value {
    std::string in_name, in_arguments;
};

struct Row {
    int first_line, last_line;
    std::string text;
};

std::vector<Row> marked_rows(const std::string& source) {
    std::vector<Row> rows;
    std::istringstream lines(source);
    int number = 0;
    for (std::string line; std::getline(lines, line);) {
        ++number;
        if (!line.starts_with("//!")) continue;
        const std::string text = line.substr(3);
        if (text.starts_with("    ") && !rows.empty() && rows.back().last_line == number - 1) {
            rows.back().text += text;
            rows.back().last_line = number;
        } else {
            rows.push_back({number, number, text});
        }
    }
    return rows;
}

std::string trimmed(const std::string& text) {
    const size_t first = text.find_first_not_of(' ');
    if (first == std::string::npos) return "";
    return text.substr(first, text.find_last_not_of(' ') + 1 - first);
}

// Split at commas outside of brackets.
std::vector<std::string> split(const std::string& list) {
    std::vector<std::string> result(1);
    int depth = 0;
    for (const char letter : list) {
        if (letter == '(' || letter == '<') ++depth;
        if (letter == ')' || letter == '>') --depth;
        if (letter == ',' && depth == 0)
            result.emplace_back();
        else
            result.back() += letter;
    }
    return result;
}

Value parse_value(const std::string& text) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos) {
        const auto type = kTypes.find(text);
        return {text, type == kTypes.end() ? text : type->second};
    }
    Value value{text.substr(0, equals), text.substr(equals + 1)};
    if (value.in_arguments.starts_with('(') && value.in_arguments.ends_with(')'))
        value.in_arguments = value.in_arguments.substr(1, value.in_arguments.size() - 2);
    return value;
}

std::string replaced(std::string text, const std::string& old, const std::string& by) {
    for (size_t at = text.find(old); at != std::string::npos; at = text.find(old, at + by.size()))
        text.replace(at, old.size(), by);
    return text;
}

// Appends a row's kernels; false for text that is none.
bool parse(const std::string& text, std::vector<Instantiation>& result) {
    static const std::regex keyword(R"(\s+for\s+)");
    static const std::regex head(R"(^\s*kernel\s+([\w{}]+)\s*=\s*((\w+)\s*<.*>)\s*$)");
    static const std::regex clause(R"(^(\w+)\s+in\s+(.+)$)");
    if (text.empty()) return false;
    std::sregex_token_iterator piece(text.begin(), text.end(), keyword, -1);
    const std::string first = *piece;
    std::smatch match;
    if (!std::regex_match(first, match, head)) return false;
    std::vector<Instantiation> kernels{{match[1], match[2], match[3]}};
    for (++piece; piece != std::sregex_token_iterator(); ++piece) {
        const std::string list = *piece;
        if (!std::regex_match(list, match, clause)) return false;
        const std::string placeholder = "{" + match[1].str() + "}";
        if (kernels[0].kernel.find(placeholder) == std::string::npos) return false;
        std::vector<Instantiation> combined;
        for (const Instantiation& kernel : kernels) {
            for (const std::string& text_of_value : split(match[2])) {
                const Value value = parse_value(trimmed(text_of_value));
                combined.push_back({replaced(kernel.kernel, placeholder, value.in_name),
                                    replaced(kernel.expression, placeholder, value.in_arguments),
                                    kernel.entry});
            }
        }
        kernels = std::move(combined);
    }
    for (const Instantiation& kernel : kernels)
        if ((kernel.kernel + kernel.expression).find_first_of("{}") != std::string::npos) return false;
    result.insert(result.end(), kernels.begin(), kernels.end());
    return true;
}

}  // namespace

std::vector<Instantiation> kernel_rows(const std::string& source, const std::string& file) {
    static const std::regex struct_pattern(R"(^\s*struct\s+\w+\s*$)");
    std::vector<Instantiation> result;
    for (const Row& row : marked_rows(source)) {
        if (std::regex_match(row.text, struct_pattern) || parse(row.text, result)) continue;
        throw CompileError(
            file + ":" + std::to_string(row.first_line) +
            ": a line that starts with //! must read `//! kernel NAME = entry<Arg, ...>`, with "
            "or without `for VARIABLE in VALUE, ...` for each {VARIABLE}, or `//! struct NAME`.");
    }
    return result;
}

}  // namespace anymps::shader_compiler
