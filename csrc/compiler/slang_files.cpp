#include "compiler/slang_files.h"

#include <atomic>
#include <cstring>
#include <filesystem>

namespace anymps::compiler {
namespace {

constexpr const char* kModuleSuffix = ".slang-module";

template <class... Interfaces>
bool is_any(const SlangUUID& id) {
    const auto equals = [&](const SlangUUID& other) { return std::memcmp(&id, &other, sizeof(id)) == 0; };
    return (equals(Interfaces::getTypeGuid()) || ...);
}

// A view of a text that it keeps alive.
class TextBlob : public ISlangBlob {
  public:
    explicit TextBlob(SourceFolders::Text text) : text_(std::move(text)) {}
    virtual ~TextBlob() = default;

    SLANG_NO_THROW SlangResult SLANG_MCALL queryInterface(const SlangUUID& id, void** object) override {
        if (!is_any<ISlangUnknown, ISlangBlob>(id)) return SLANG_E_NO_INTERFACE;
        addRef();
        *object = static_cast<ISlangBlob*>(this);
        return SLANG_OK;
    }
    SLANG_NO_THROW uint32_t SLANG_MCALL addRef() override { return ++references_; }
    SLANG_NO_THROW uint32_t SLANG_MCALL release() override {
        const uint32_t left = --references_;
        if (left == 0) delete this;
        return left;
    }
    SLANG_NO_THROW const void* SLANG_MCALL getBufferPointer() override { return text_->data(); }
    SLANG_NO_THROW size_t SLANG_MCALL getBufferSize() override { return text_->size(); }

  private:
    SourceFolders::Text text_;
    std::atomic<uint32_t> references_{1};
};

}  // namespace

SlangResult SlangFiles::queryInterface(const SlangUUID& id, void** object) {
    *object = castAs(id);
    return *object ? SLANG_OK : SLANG_E_NO_INTERFACE;
}

void* SlangFiles::castAs(const SlangUUID& id) {
    if (!is_any<ISlangUnknown, ISlangCastable, ISlangFileSystem>(id)) return nullptr;
    return static_cast<ISlangFileSystem*>(this);
}

SlangResult SlangFiles::loadFile(const char* path, ISlangBlob** blob) {
    const std::string name = std::filesystem::path(path).lexically_normal().generic_string();
    const SourceFolders::Text text =
        name.ends_with(kModuleSuffix) ? modules_.find(name) : sources_.find(name);
    if (!text) return SLANG_E_NOT_FOUND;
    *blob = new TextBlob(text);
    return SLANG_OK;
}

std::string module_name(const std::string& text_name) {
    return std::filesystem::path(text_name).replace_extension(kModuleSuffix).generic_string();
}

}  // namespace anymps::compiler
