#include "kernels/kernel_library.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <filesystem>

#include "kernels/archive_reader.h"
#include "kernels/pipeline_table.h"
#include "runtime/device.h"

namespace anymps::kernels {

namespace {

// kernels.bin lies beside the shared library (or test program) that this code is part of.
std::string archive_path() {
    Dl_info info{};
    TORCH_INTERNAL_ASSERT(dladdr(reinterpret_cast<const void*>(&kernel_id), &info) != 0);
    return std::filesystem::path(info.dli_fname).replace_filename("kernels.bin");
}

struct Library {
    ArchiveReader archive{archive_path()};
    std::vector<PipelineTable> tables{archive.size()};
};

// Never destroyed: threads and static objects may still run kernels while the process ends.
Library& library() {
    static Library& instance = *new Library;
    return instance;
}

std::string label(std::string_view name, std::span<const uint32_t> specialization) {
    std::string text(name);
    for (size_t i = 0; i < specialization.size(); ++i) {
        text += (i == 0 ? '[' : ',') + std::to_string(specialization[i]);
    }
    return specialization.empty() ? text : text + ']';
}

}  // namespace

KernelId kernel_id(std::string_view name) {
    const auto found = library().archive.find(name);
    TORCH_INTERNAL_ASSERT(found, "The kernel archive has no kernel named ", name, ".");
    return *found;
}

const vulkan::Pipeline& pipeline(KernelId id, std::span<const uint32_t> specialization) {
    Library& self = library();
    PipelineTable& table = self.tables[id];
    if (const auto* found = table.find(specialization)) [[likely]] {
        return *found;
    }
    return table.find_or_create(specialization, [&] {
        return std::make_unique<vulkan::Pipeline>(runtime::device(),
                                                  label(self.archive.name(id), specialization),
                                                  self.archive.spirv(id), specialization);
    });
}

std::vector<std::string> kernel_names() {
    std::vector<std::string> names;
    const ArchiveReader& archive = library().archive;
    for (uint32_t i = 0; i < archive.size(); ++i) names.emplace_back(archive.name(i));
    return names;
}

std::span<const uint32_t> kernel_spirv(KernelId id) {
    TORCH_INTERNAL_ASSERT(id < library().archive.size());
    return library().archive.spirv(id);
}

}  // namespace anymps::kernels
