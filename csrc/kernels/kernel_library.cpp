#include "kernels/kernel_library.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <filesystem>
#include <utility>

#include "kernels/archive_reader.h"
#include "kernels/pipeline_label.h"
#include "kernels/pipeline_table.h"
#include "runtime/compile_threads.h"
#include "runtime/device.h"
#include "vulkan/device_profile.h"
#include "vulkan/instance.h"

namespace anymps::kernels {

namespace {

// kernels.bin lies beside the shared library (or test program) that this code is part of.
std::string archive_path() {
    Dl_info info{};
    TORCH_INTERNAL_ASSERT(dladdr(reinterpret_cast<const void*>(&kernel_id), &info) != 0);
    return std::filesystem::path(info.dli_fname).replace_filename("kernels.bin");
}

// Kernels that add floats in memory come twice: NAME, and NAME_native for devices that do it in one
// instruction (shaders/lib/atomic.slang). Some that keep many values come as NAME_lean, too.
std::vector<KernelId> variants(const ArchiveReader& archive) {
    const vulkan::DeviceInfo& info = runtime::device_info();
    const std::pair<bool, const char*> suffixes[] = {{info.float32_atomic_add, "_native"},
                                                     {info.profile->lean(), "_lean"}};
    std::vector<KernelId> chosen(archive.size());
    for (KernelId id = 0; id < archive.size(); ++id) {
        chosen[id] = id;
        for (const auto& [wanted, suffix] : suffixes)
            if (wanted)
                chosen[id] = archive.find(std::string(archive.name(id)) + suffix).value_or(chosen[id]);
    }
    return chosen;
}

struct Library {
    ArchiveReader archive{archive_path()};
    std::vector<PipelineTable> tables{archive.size()};
    std::vector<KernelId> variant = variants(archive);  // that this device runs, by the kernel's own number
};

// Never destroyed: threads and static objects may still run kernels while the process ends.
Library& library() {
    static Library& instance = *new Library;
    return instance;
}

}  // namespace

std::string pipeline_label(std::string_view name, std::span<const uint32_t> specialization) {
    std::string text(name);
    for (size_t i = 0; i < specialization.size(); ++i) {
        text += (i == 0 ? '[' : ',') + std::to_string(specialization[i]);
    }
    return specialization.empty() ? text : text + ']';
}

KernelId kernel_id(std::string_view name) {
    const auto found = library().archive.find(name);
    TORCH_INTERNAL_ASSERT(found, "The kernel archive has no kernel named ", name, ".");
    return library().variant[*found];
}

const vulkan::Pipeline& pipeline(KernelId id, std::span<const uint32_t> specialization) {
    Library& self = library();
    PipelineTable& table = self.tables[id];
    if (const auto* found = table.find(specialization)) [[likely]] {
        return *found;
    }
    return table.find_or_create(specialization, [&] {
        auto created = std::make_unique<vulkan::Pipeline>(
            runtime::device(), pipeline_label(self.archive.name(id), specialization), self.archive.spirv(id),
            specialization);
        runtime::compile_later(*created, self.archive.spirv(id).size());
        return created;
    });
}

size_t pipeline_count() {
    size_t count = 0;
    for (const PipelineTable& table : library().tables) count += table.size();
    return count;
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
