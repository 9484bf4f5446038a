// The functions of torch_anymps/include/anymps/kernel.h.
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include <exception>
#include <memory>
#include <span>
#include <string>

#include "anymps/kernel.h"
#include "kernels/user_kernel.h"

namespace anymps::kernels {
namespace {

thread_local std::string last_error;

// ANYMPS_OK, or what the function has thrown, whose words are kept.
template <class Function>
anymps_status guarded(Function function) noexcept {
    try {
        function();
        return ANYMPS_OK;
    } catch (const c10::ValueError& error) {
        last_error = error.what_without_backtrace();
        return ANYMPS_INVALID_VALUE;
    } catch (const c10::OutOfMemoryError& error) {
        last_error = error.what_without_backtrace();
        return ANYMPS_OUT_OF_MEMORY;
    } catch (const c10::Error& error) {
        last_error = error.what_without_backtrace();
    } catch (const std::exception& error) {
        last_error = error.what();
    }
    return ANYMPS_ERROR;
}

anymps_status create(const char* name, const uint32_t* spirv, size_t words, uint32_t subgroup_size,
                     anymps_kernel** kernel) {
    return guarded([&] {
        TORCH_CHECK_VALUE(name && spirv && kernel,
                          "A kernel needs a name, SPIR-V and a place for its handle.");
        auto created = std::make_unique<UserKernel>(name, std::span(spirv, words), subgroup_size);
        *kernel = reinterpret_cast<anymps_kernel*>(created.release());  // as long as the process
    });
}

anymps_status dispatch(anymps_kernel* kernel, const uint32_t groups[3], const uint32_t* group_size,
                       const void* args, size_t bytes, const anymps_access* accesses, size_t count) {
    return guarded([&] {
        TORCH_CHECK_VALUE(kernel && groups && (args || bytes == 0) && (accesses || count == 0),
                          "A dispatch needs a kernel, workgroups, arguments and accesses.");
        auto& called = *reinterpret_cast<UserKernel*>(kernel);
        const GroupSize size = group_size ? GroupSize{group_size[0], group_size[1], group_size[2]}
                                          : called.declared_group_size();
        c10::SmallVector<runtime::Access, 8> memory;
        for (const anymps_access& access : std::span(accesses, count)) {
            memory.push_back({access.address, access.bytes, access.write != 0});
        }
        called.dispatch(args, bytes, {groups[0], groups[1], groups[2]}, size, memory);
    });
}

const char* error_text() {
    return last_error.c_str();
}

constexpr anymps_kernel_api kApi{ANYMPS_KERNEL_API_VERSION, sizeof(anymps_kernel_api), create, dispatch,
                                 error_text};

TORCH_LIBRARY_FRAGMENT(anymps, m) {
    m.def("kernel_api() -> int", [] { return reinterpret_cast<int64_t>(&kApi); });
}

}  // namespace
}  // namespace anymps::kernels
