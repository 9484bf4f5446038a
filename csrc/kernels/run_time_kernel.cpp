#include "kernels/run_time_kernel.h"

#include <ATen/core/Tensor.h>
#include <ATen/mps/EmptyTensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <pthread.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "compiler/compile_service.h"
#include "kernels/kernel_call.h"
#include "kernels/kernel_library.h"
#include "kernels/pipeline_label.h"
#include "runtime/command_encoder.h"
#include "runtime/compile_threads.h"
#include "runtime/device.h"
#include "runtime/exit.h"
#include "runtime/kernel_profile.h"

namespace anymps::kernels {
namespace {

constexpr unsigned kMaxCompileThreads = 4;

// Never destroyed. A forked child gets nullptr, as the threads are the parent's.
std::atomic<compiler::CompileService*> g_service{nullptr};
std::mutex g_open_mutex;

unsigned compile_threads() {
    const unsigned cores = std::max(std::thread::hardware_concurrency(), 1u);
    const char* value = std::getenv("ANYMPS_COMPILE_THREADS");
    if (!value || !*value) return std::min(kMaxCompileThreads, cores);
    char* end = nullptr;
    const long threads = std::strtol(value, &end, 10);
    TORCH_CHECK(*end == '\0' && threads >= 1 && threads <= kMaxCompileThreads,
                "ANYMPS_COMPILE_THREADS=", value, " is no number of threads from 1 to ", kMaxCompileThreads);
    return static_cast<unsigned>(threads);
}

compiler::CompileService& service() {
    compiler::CompileService* opened = g_service.load(std::memory_order_acquire);
    TORCH_CHECK(opened, "The Slang library has not been opened in this process (anymps::open_slang)");
    return *opened;
}

struct Pipelines {
    // Name; source, or its SPIR-V's bytes; specialization.
    using Key = std::tuple<std::string, std::string, std::vector<uint32_t>>;
    std::mutex mutex;
    std::map<Key, std::unique_ptr<vulkan::Pipeline>> by_key;
};

// Never destroyed: launchers keep addresses.
Pipelines& pipelines() {
    static Pipelines& instance = *new Pipelines;
    return instance;
}

// Sizes of a launch for its profile: the arguments behind the tensors' addresses.
std::string sizes_of(const void* args, size_t bytes, size_t tensors) {
    std::string text;
    for (size_t at = tensors * sizeof(int64_t); at + sizeof(int64_t) <= bytes; at += sizeof(int64_t)) {
        int64_t value = 0;
        std::memcpy(&value, static_cast<const std::byte*>(args) + at, sizeof(value));
        text += (text.empty() ? "" : ", ") + std::to_string(value);
    }
    return '[' + text + ']';
}

}  // namespace

std::string open_slang(const std::string& library, std::span<const std::string> folders) {
    const std::lock_guard lock(g_open_mutex);
    const std::vector<std::string> paths(folders.begin(), folders.end());
    if (const auto* opened = g_service.load(std::memory_order_acquire)) {
        TORCH_CHECK(opened->options().library == library && opened->options().folders == paths,
                    "The Slang library ", opened->options().library,
                    " is open in this process already, and another or other folders of sources cannot be.");
        return opened->version();
    }
    auto created = std::make_unique<compiler::CompileService>(compiler::CompileService::Options{
        .library = library,
        .folders = paths,
        .cache_folder = runtime::cache_folder(),
        .threads = compile_threads(),
    });
    static std::once_flag once;
    std::call_once(once, [] {
        pthread_atfork(nullptr, nullptr, [] { g_service.store(nullptr, std::memory_order_relaxed); });
        // Slang makes static objects when it is first used: atexit() would come after their destructors.
        runtime::before_drain([] {
            if (auto* opened = g_service.load(std::memory_order_acquire)) opened->stop();
        });
    });
    g_service.store(created.get(), std::memory_order_release);
    return created.release()->version();
}

void compile_slang_later(const std::string& source) {
    service().start(source);
}

void prepare_slang(const std::string& source) {
    service().prepare(source);
}

std::span<const uint32_t> compile_slang(const std::string& source) {
    return service().get(source);
}

std::span<const uint32_t> compile_slang_all(const std::string& source) {
    return service().get_all(source);
}

uint64_t slang_compilations() {
    return service().compilations();
}

namespace {

const vulkan::Pipeline& kept_pipeline(const std::string& name, std::string source,
                                      std::span<const uint32_t> words,
                                      std::span<const uint32_t> specialization) {
    Pipelines& all = pipelines();
    const std::lock_guard lock(all.mutex);
    auto& pipeline = all.by_key[{name, std::move(source), {specialization.begin(), specialization.end()}}];
    if (!pipeline) {
        pipeline = std::make_unique<vulkan::Pipeline>(runtime::device(), pipeline_label(name, specialization),
                                                      words, specialization);
        runtime::compile_later(*pipeline, words.size());
    }
    return *pipeline;
}

}  // namespace

const vulkan::Pipeline& run_time_kernel(const std::string& name, const std::string& source,
                                        std::span<const uint32_t> specialization) {
    return kept_pipeline(name, source, compile_slang(source), specialization);
}

const vulkan::Pipeline& run_time_kernel(const std::string& name, std::span<const uint32_t> words,
                                        std::span<const uint32_t> specialization) {
    const std::string bytes(reinterpret_cast<const char*>(words.data()), words.size_bytes());
    return kept_pipeline(name, bytes, words, specialization);
}

namespace {

std::vector<uint32_t> constants_in(at::IntArrayRef values) {
    for (const int64_t value : values) {
        TORCH_CHECK_VALUE(value >= 0 && value <= UINT32_MAX, "the specialization constant ", value,
                          " is not a 32-bit unsigned integer");
    }
    return {values.begin(), values.end()};
}

std::string open_slang_op(const std::string& library, const std::vector<std::string>& folders) {
    return open_slang(library, folders);
}

at::Tensor compile_slang_op(const std::string& source) {
    const auto words = compile_slang(source);
    const auto count = static_cast<int64_t>(words.size());
    return at::from_blob(const_cast<uint32_t*>(words.data()), {count}, at::kInt).clone();
}

int64_t create_kernel(const std::string& name, const std::string& source, at::IntArrayRef specialization) {
    return reinterpret_cast<int64_t>(&run_time_kernel(name, source, constants_in(specialization)));
}

// {address, code} for report_error() of a generated kernel; the error's words are the message.
std::tuple<int64_t, int64_t> message_slot(const std::string& message) {
    const runtime::ErrorSlot slot = runtime::encoder().message_slot(message);
    return {static_cast<int64_t>(slot.address), static_cast<int64_t>(slot.code)};
}

std::tuple<std::vector<std::string>, std::vector<double>> source_statistics(const std::string& name,
                                                                            const std::string& source,
                                                                            at::IntArrayRef specialization) {
    const auto& pipeline = run_time_kernel(name, source, constants_in(specialization));
    std::tuple<std::vector<std::string>, std::vector<double>> result;
    for (const auto& [label, value] : pipeline.statistics()) {
        std::get<0>(result).push_back(label);
        std::get<1>(result).push_back(value);
    }
    return result;
}

TORCH_LIBRARY_FRAGMENT(anymps, m) {
    m.def("open_slang(str library, str[] folders) -> str", open_slang_op);
    m.def("compile_slang_later(str source) -> ()", compile_slang_later);
    m.def("prepare_slang(str source) -> ()", prepare_slang);
    m.def("compile_slang(str source) -> Tensor", compile_slang_op);
    m.def("slang_compilations() -> int", [] { return static_cast<int64_t>(slang_compilations()); });
    m.def("slang_sessions() -> int", [] { return static_cast<int64_t>(service().sessions()); });
    m.def("create_kernel(str name, str source, int[] specialization) -> int", create_kernel);
    m.def("source_statistics(str name, str source, int[] specialization) -> (str[], float[])",
          source_statistics);
    m.def("message_slot(str message) -> (int, int)", message_slot);
    m.def("launch_function() -> int", [] { return reinterpret_cast<int64_t>(&anymps_launch_kernel); });
    m.def("address_of_nothing() -> int", [] { return static_cast<int64_t>(address_of_nothing()); });
    m.def("empty_strided_function() -> int", [] { return reinterpret_cast<int64_t>(&anymps_empty_strided); });
}

}  // namespace
}  // namespace anymps::kernels

void anymps_launch_kernel(void* pipeline, const void* args, size_t bytes, uint64_t groups,
                          const anymps::runtime::Access* accesses, size_t count) {
    using namespace anymps;
    if (groups == 0) return;
    if (runtime::profiling()) [[unlikely]] {
        runtime::profile_work(0, kernels::sizes_of(args, bytes, count));
    }
    const auto grid = runtime::Grid::linear(groups);
    const std::span memory(accesses, count);
    const auto& kernel = *static_cast<const vulkan::Pipeline*>(pipeline);
    if (bytes <= vulkan::kPushConstantBytes) {
        runtime::encoder().dispatch(kernel, args, bytes, grid, memory);
    } else {
        runtime::encoder().dispatch_pointer(kernel, args, bytes, grid, memory);
    }
}

c10::TensorImpl* anymps_empty_strided(const int64_t* sizes, const int64_t* strides, size_t dims,
                                      c10::ScalarType dtype) {
    return at::detail::empty_strided_mps({sizes, dims}, {strides, dims}, dtype, std::nullopt)
        .unsafeReleaseTensorImpl();
}
