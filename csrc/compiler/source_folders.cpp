#include "compiler/source_folders.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "compiler/sha256.h"

namespace anymps::compiler {
namespace {

std::string read_text(const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    if (!in) throw std::runtime_error("The Slang source " + file.string() + " cannot be read.");
    std::ostringstream text;
    text << in.rdbuf();
    return std::move(text).str();
}

}  // namespace

SourceFolders::SourceFolders(const std::vector<std::string>& folders) {
    namespace fs = std::filesystem;
    for (const std::string& folder : folders) {
        if (!fs::is_directory(folder)) {
            throw std::runtime_error("The folder of Slang sources " + folder + " does not exist.");
        }
        const std::string stem = fs::path(folder + "/").parent_path().filename().string();
        const std::string name = names_.empty() ? stem : stem + std::to_string(names_.size());
        names_.push_back(name);
        constexpr auto kLinks = fs::directory_options::follow_directory_symlink;
        for (const auto& entry : fs::recursive_directory_iterator(folder, kLinks)) {
            if (entry.path().extension() != ".slang" || !entry.is_regular_file()) continue;
            const std::string relative = fs::path(entry.path()).lexically_relative(folder).generic_string();
            texts_[name + "/" + relative] = std::make_shared<const std::string>(read_text(entry.path()));
        }
    }
    Sha256 hash;
    for (const std::string& name : names_) hash.add_field(name);
    for (const auto& [name, text] : texts_) hash.add_field(name).add_field(*text);
    hash_ = hash.finish_hex();
}

SourceFolders::Text SourceFolders::find(const std::string& name) const {
    const auto found = texts_.find(name);
    return found == texts_.end() ? nullptr : found->second;
}

SourceFolders::Text ModuleCache::find(const std::string& name) {
    const std::lock_guard lock(mutex_);
    const auto [entry, is_new] = known_.try_emplace(name);
    if (is_new) {
        if (auto bytes = disk_.find(name))
            entry->second = std::make_shared<const std::string>(std::move(*bytes));
    }
    return entry->second;
}

void ModuleCache::store(const std::string& name, std::string_view bytes) {
    {
        const std::lock_guard lock(mutex_);
        SourceFolders::Text& known = known_[name];
        if (known) return;
        known = std::make_shared<const std::string>(bytes);
    }
    disk_.store(name, bytes);
}

}  // namespace anymps::compiler
