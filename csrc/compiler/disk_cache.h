// Files that may be lost at any time: each is checked when it is read, and made again by its owner.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace anymps::compiler {

// A folder of files by name, shared with other processes. Thread-safe. Never throws for what the file system
// does: what cannot be read is absent, and what cannot be written is not kept.
class DiskCache {
  public:
    explicit DiskCache(std::filesystem::path folder) : folder_(std::move(folder)) {}

    // nullopt where there is no such file, or a truncated or damaged one. name: a relative path.
    std::optional<std::string> find(const std::string& name) const;

    // Whole or not at all: written under another name and renamed.
    void store(const std::string& name, std::string_view bytes) const;

  private:
    std::filesystem::path folder_;
};

}  // namespace anymps::compiler
