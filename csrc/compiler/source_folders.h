// The Slang sources that kernels import, as they were when the process first asked, and their serialized
// forms.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/disk_cache.h"

namespace anymps::compiler {

// Files get names that do not depend on where the package lies: "shaders/lib/math.slang". Thread-safe.
class SourceFolders {
  public:
    using Text = std::shared_ptr<const std::string>;

    // Reads every .slang file below the folders. Throws std::runtime_error naming a folder that is not there.
    explicit SourceFolders(const std::vector<std::string>& folders);

    // The names of the folders, to search in this order.
    const std::vector<std::string>& names() const { return names_; }
    // Hash of all names and texts, in hexadecimal digits.
    const std::string& hash() const { return hash_; }

    // nullptr where there is no such file.
    Text find(const std::string& name) const;

  private:
    std::vector<std::string> names_;
    std::map<std::string, Text> texts_;
    std::string hash_;
};

// Modules as Slang has checked them, so that other sessions and processes need not parse and check again.
// Thread-safe.
class ModuleCache {
  public:
    explicit ModuleCache(DiskCache disk) : disk_(std::move(disk)) {}

    // name: "shaders/lib/math.slang-module". nullptr where there is none.
    SourceFolders::Text find(const std::string& name);
    // True where find() would answer nullptr.
    bool lacks(const std::string& name) { return find(name) == nullptr; }
    void store(const std::string& name, std::string_view bytes);

  private:
    DiskCache disk_;
    std::mutex mutex_;
    std::map<std::string, SourceFolders::Text> known_;  // nullptr: not on disk either
};

}  // namespace anymps::compiler
