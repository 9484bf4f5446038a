#include "kernels/user_kernel.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "compiler/entry_points.h"
#include "compiler/push_constants.h"
#include "compiler/written_memory.h"
#include "kernels/pipeline_label.h"
#include "kernels/run_time_kernel.h"
#include "runtime/compile_threads.h"
#include "runtime/device.h"
#include "runtime/json.h"
#include "spirv/opcodes.h"
#include "vulkan/device.h"
#include "vulkan/spirv_demands.h"

namespace anymps::kernels {
namespace {

constexpr uint32_t kMaxGroups = 65535;  // in one dimension, of every device
constexpr uint32_t kMaxDepth = 64;      // threads of a workgroup in the third dimension, of every device

// Numbers of the SPIR-V specification.
constexpr uint32_t kMagic = 0x07230203, kLocalSize = 17, kCompute = 5, kDescriptorSet = 34;
constexpr uint32_t kMain = 0x6e69616d;  // "main", as a word

uint64_t volume(const GroupSize& size) {
    return uint64_t{size[0]} * size[1] * size[2];
}

// Some of the workgroups along one dimension.
struct Piece {
    uint32_t first, count, size;
};

// Workgroups of `size` threads over `threads`, and, where `exact`, one of what is left.
std::vector<Piece> pieces(uint32_t threads, uint32_t size, bool exact) {
    const uint32_t rest = threads % size;
    const uint32_t whole = threads / size + (rest != 0 && !exact);
    std::vector<Piece> result;
    for (uint32_t first = 0; first < whole; first += kMaxGroups)
        result.push_back({first, std::min(whole - first, kMaxGroups), size});
    if (exact && rest != 0) result.push_back({whole, 1, rest});
    return result;
}

}  // namespace

UserKernel::UserKernel(std::string name, std::span<const uint32_t> spirv, uint32_t lanes,
                       std::span<const uint32_t> specialization)
    : name_(std::move(name)),
      spirv_(spirv.begin(), spirv.end()),
      lanes_(lanes),
      specialization_(specialization.begin(), specialization.end()) {
    using namespace spirv;
    TORCH_CHECK_VALUE(spirv_.size() > kHeaderWords && spirv_[0] == kMagic, "The kernel ", name_,
                      " is no SPIR-V module.");
    TORCH_CHECK_VALUE(compiler::push_constant_bytes(spirv_) <= vulkan::kPushConstantBytes, "The kernel ",
                      name_, " has more than ", vulkan::kPushConstantBytes, " bytes of push constants.");
    int entry_points = 0;
    for_each_instruction(Words(spirv_).subspan(kHeaderWords), [&](Words i) {
        if (opcode_of(i) == Op::ExecutionMode && i[2] == kLocalSize) {
            size_at_ = static_cast<size_t>(i.data() - spirv_.data()) + 3;
            std::copy_n(i.begin() + 3, 3, declared_.begin());
        } else if (opcode_of(i) == Op::EntryPoint && i[1] == kCompute && i[3] == kMain) {
            ++entry_points;
        }
        TORCH_CHECK_VALUE(opcode_of(i) != Op::Decorate || i[2] != kDescriptorSet, "The kernel ", name_,
                          " uses a descriptor; memory is reached by address.");
    });
    TORCH_CHECK_VALUE(entry_points == 1, "The kernel ", name_, " needs one compute entry point, \"main\".");
}

const vulkan::Pipeline& UserKernel::pipeline(const GroupSize& size) {
    const std::lock_guard lock(mutex_);
    auto& pipeline = pipelines_[size];
    if (!pipeline) {
        const vulkan::DeviceInfo& info = runtime::device_info();
        TORCH_CHECK_VALUE(volume(size) > 0 && volume(size) <= info.max_workgroup_size && size[2] <= kMaxDepth,
                          "The workgroup of ", size[0], " x ", size[1], " x ", size[2], " threads of kernel ",
                          name_, " exceeds the limit of ", info.max_workgroup_size, " threads, ", kMaxDepth,
                          " in the third dimension.");
        TORCH_CHECK_VALUE(size_at_ != 0 || size == declared_ || size[1] * size[2] == 1, "The kernel ", name_,
                          " sets its workgroup by a constant: group_size can have one dimension.");
        std::vector<uint32_t> words = spirv_;
        if (size_at_ != 0) std::copy(size.begin(), size.end(), words.begin() + size_at_);
        std::vector<uint32_t> constants{static_cast<uint32_t>(volume(size)), lanes_};
        constants.insert(constants.end(), specialization_.begin(), specialization_.end());
        pipeline = std::make_unique<vulkan::Pipeline>(runtime::device(), pipeline_label(name_, size), words,
                                                      constants);
        runtime::compile_later(*pipeline, words.size());
    }
    return *pipeline;
}

void UserKernel::dispatch(const void* args, size_t bytes, runtime::Grid groups, const GroupSize& size,
                          std::span<const runtime::Access> accesses) {
    const vulkan::Pipeline& kernel = pipeline(size);
    TORCH_CHECK_VALUE(std::max({groups.x, groups.y, groups.z}) <= kMaxGroups, "The kernel ", name_,
                      " was asked for ", groups.x, " x ", groups.y, " x ", groups.z,
                      " workgroups, and a device takes ", kMaxGroups,
                      " in a dimension: have its threads loop, or take larger workgroups.");
    if (groups.x == 0 || groups.y == 0 || groups.z == 0) return;
    if (bytes <= vulkan::kPushConstantBytes) {
        runtime::encoder().dispatch(kernel, args, bytes, groups, accesses);
    } else {
        runtime::encoder().dispatch_pointer(kernel, args, bytes, groups, accesses);
    }
}

void UserKernel::dispatch_threads(void* args, size_t bytes, const GroupSize& threads, const GroupSize& size,
                                  bool exact, std::span<const runtime::Access> accesses) {
    pipeline(size);  // checks
    for (const Piece& z : pieces(threads[2], size[2], exact)) {
        for (const Piece& y : pieces(threads[1], size[1], exact)) {
            for (const Piece& x : pieces(threads[0], size[0], exact)) {
                const GroupSize here{x.size, y.size, z.size};
                const MetalLaunch launch{threads, size, {x.first, y.first, z.first}, here};
                std::memcpy(args, &launch, sizeof(launch));
                runtime::encoder().dispatch_pointer(pipeline(here), args, bytes,
                                                    runtime::Grid{x.count, y.count, z.count}, accesses);
            }
        }
    }
}

namespace {

// The kernels of a source, made once.
struct Library {
    std::vector<std::string> names;
    std::vector<int64_t> kernels;  // addresses of UserKernel
};

// Never destroyed, as its kernels are not.
std::mutex g_libraries_mutex;
std::map<std::pair<std::string, int64_t>, Library>& libraries() {
    static auto& instance = *new std::map<std::pair<std::string, int64_t>, Library>;
    return instance;
}

std::tuple<std::vector<std::string>, std::vector<int64_t>> compile_library(const std::string& source,
                                                                           int64_t lanes) {
    const auto packed = compile_slang_all(source);
    const std::lock_guard lock(g_libraries_mutex);
    const auto [entry, is_new] = libraries().try_emplace({source, lanes});
    Library& library = entry->second;
    if (is_new) {
        for (const compiler::EntryPoint& point : compiler::unpack_entry_points(packed)) {
            auto kernel = std::make_unique<UserKernel>(point.name, point.words, static_cast<uint32_t>(lanes));
            library.names.push_back(point.name);
            library.kernels.push_back(reinterpret_cast<int64_t>(kernel.release()));
        }
    }
    return {library.names, library.kernels};
}

const char* name_of(compiler::ScalarKind kind) {
    switch (kind) {
        case compiler::ScalarKind::sint:
            return "int";
        case compiler::ScalarKind::uint:
            return "uint";
        case compiler::ScalarKind::floating:
            return "float";
        default:
            return "other";
    }
}

// What Python must know of a kernel to launch it, as JSON.
std::string kernel_interface(int64_t handle) {
    const auto& kernel = *reinterpret_cast<const UserKernel*>(handle);
    const auto parameters = compiler::push_constants(kernel.spirv());
    const uint64_t written = compiler::written_parameters(kernel.spirv());
    const auto number = [](uint32_t value) { return std::to_string(value); };
    return runtime::JsonObject()
        .raw("parameters", runtime::json_list(parameters,
                                              [](const compiler::PushConstant& p) {
                                                  return runtime::JsonObject()
                                                      .number("offset", p.offset)
                                                      .number("bytes", p.bytes)
                                                      .boolean("is_address", p.is_address)
                                                      .text("kind", p.is_bfloat ? "bfloat" : name_of(p.kind))
                                                      .number("bits", p.bits)
                                                      .str();
                                              }))
        .number("written", written)
        .raw("group_size", runtime::json_list(kernel.declared_group_size(), number))
        .number("max_threads", runtime::device_info().max_workgroup_size)
        .number("subgroup_size", runtime::device_info().subgroup_size)
        .number("shared_bytes", vulkan::shared_memory_of(kernel.spirv()))
        .str();
}

at::Tensor kernel_words(int64_t handle) {
    const auto words = reinterpret_cast<const UserKernel*>(handle)->spirv();
    const auto count = static_cast<int64_t>(words.size());
    return at::from_blob(const_cast<uint32_t*>(words.data()), {count}, at::kInt).clone();
}

TORCH_LIBRARY_FRAGMENT(anymps, m) {
    m.def("kernel_words(int kernel) -> Tensor", kernel_words);
    m.def("compile_library(str source, int lanes) -> (str[], int[])", compile_library);
    m.def("kernel_interface(int kernel) -> str", kernel_interface);
    m.def("launch_user_kernel_function() -> int",
          [] { return reinterpret_cast<int64_t>(&anymps_launch_user_kernel); });
}

}  // namespace
}  // namespace anymps::kernels

void anymps_launch_user_kernel(void* kernel, void* args, size_t bytes, const uint32_t extent[3],
                               const uint32_t group_size[3], int mode,
                               const anymps::runtime::Access* accesses, size_t count) {
    using namespace anymps;
    auto& user_kernel = *static_cast<kernels::UserKernel*>(kernel);
    const kernels::GroupSize size{group_size[0], group_size[1], group_size[2]};
    const std::span memory(accesses, count);
    if (mode == 0) {
        user_kernel.dispatch(args, bytes, {extent[0], extent[1], extent[2]}, size, memory);
    } else {
        user_kernel.dispatch_threads(args, bytes, {extent[0], extent[1], extent[2]}, size, mode == 2, memory);
    }
}
