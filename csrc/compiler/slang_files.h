// What Slang opens: texts and serialized modules from memory, never the file system.
#pragma once

#include "compiler/source_folders.h"
#include "slang.h"

namespace anymps::compiler {

// Owned by a session of Slang's user and outlives it: reference counts are ignored.
class SlangFiles : public ISlangFileSystem {
  public:
    SlangFiles(const SourceFolders& sources, ModuleCache& modules) : sources_(sources), modules_(modules) {}

    SLANG_NO_THROW SlangResult SLANG_MCALL queryInterface(const SlangUUID& id, void** object) override;
    SLANG_NO_THROW uint32_t SLANG_MCALL addRef() override { return 1; }
    SLANG_NO_THROW uint32_t SLANG_MCALL release() override { return 1; }
    SLANG_NO_THROW void* SLANG_MCALL castAs(const SlangUUID& id) override;
    SLANG_NO_THROW SlangResult SLANG_MCALL loadFile(const char* path, ISlangBlob** blob) override;

  private:
    const SourceFolders& sources_;
    ModuleCache& modules_;
};

// The name of the serialized form of a module read from this file.
std::string module_name(const std::string& text_name);

}  // namespace anymps::compiler
