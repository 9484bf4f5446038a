#include "profile.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace anymps::device_layer {
namespace {

[[noreturn]] void fail(const std::string& message) {
    std::fprintf(stderr, "VK_LAYER_ANYMPS_device: %s\n", message.c_str());
    std::exit(70);
}

Profile read() {
    const char* name = std::getenv("ANYMPS_DEVICE_PROFILE");
    if (name == nullptr) fail("ANYMPS_DEVICE_PROFILE names no file");
    std::ifstream file(name);
    if (!file) fail(std::string("cannot read ") + name);
    Profile result;
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        std::string kind, key;
        words >> kind;
        uint64_t a = 0, b = 0, c = 0;
        if (kind == "text") {
            words >> key >> std::ws;
            std::getline(words, result.texts[key]);
        } else if (kind == "property") {
            words >> key >> a;
            result.properties[key] = a;
        } else if (kind == "feature") {
            words >> key;
            result.features.insert(key);
        } else if (kind == "lacks") {
            words >> key;
            result.lacks.insert(key);
        } else if (kind == "heap") {
            words >> a >> b;
            result.heaps.push_back({a, static_cast<VkMemoryHeapFlags>(b)});
        } else if (kind == "type") {
            words >> a >> b;
            result.types.push_back({static_cast<VkMemoryPropertyFlags>(b), static_cast<uint32_t>(a)});
        } else if (kind == "queue") {
            words >> a >> b >> c;
            result.queues.push_back({static_cast<VkQueueFlags>(a),
                                     static_cast<uint32_t>(b),
                                     static_cast<uint32_t>(c),
                                     {1, 1, 1}});
        } else if (!kind.empty()) {
            fail("unknown line: " + line);
        }
        if (words.fail()) fail("incomplete line: " + line);
    }
    if (result.heaps.empty() || result.types.empty() || result.queues.empty())
        fail("no heap, memory type or queue");
    return result;
}

}  // namespace

const Profile& profile() {
    static const Profile& instance = *new Profile(read());
    return instance;
}

}  // namespace anymps::device_layer
