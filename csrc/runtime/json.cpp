#include "runtime/json.h"

namespace anymps::runtime {

std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else {
            out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
        }
    }
    return out + '"';
}

JsonObject& JsonObject::raw(const char* name, const std::string& json) {
    if (!body_.empty()) body_ += ", ";
    body_ += quoted(name) + ": " + json;
    return *this;
}

}  // namespace anymps::runtime
