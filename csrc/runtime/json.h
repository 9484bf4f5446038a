// JSON text for the Python part of the package.
#pragma once

#include <cstdint>
#include <string>

namespace anymps::runtime {

// In quotes; what is below a space becomes one.
std::string quoted(const std::string& text);

// One object, written field by field.
class JsonObject {
  public:
    JsonObject& text(const char* name, const std::string& value) { return raw(name, quoted(value)); }
    JsonObject& number(const char* name, uint64_t value) { return raw(name, std::to_string(value)); }
    JsonObject& boolean(const char* name, bool value) { return raw(name, value ? "true" : "false"); }
    JsonObject& raw(const char* name, const std::string& json);
    std::string str() const { return "{" + body_ + "}"; }

  private:
    std::string body_;
};

// "[a, b, c]" of a JSON value for each of a range.
template <class Range, class Function>
std::string json_list(const Range& range, Function json_of) {
    std::string body;
    for (const auto& item : range) {
        if (!body.empty()) body += ", ";
        body += json_of(item);
    }
    return "[" + body + "]";
}

}  // namespace anymps::runtime
