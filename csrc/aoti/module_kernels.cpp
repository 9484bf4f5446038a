// The functions of torch_anymps/include/anymps/aoti.h.
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/inductor/aoti_torch/utils.h>

#include <array>
#include <memory>
#include <span>

#include "anymps/aoti.h"
#include "kernels/kernel_call.h"
#include "kernels/run_time_kernel.h"
#include "runtime/command_encoder.h"
#include "runtime/device.h"

using namespace anymps;

struct anymps_aoti_kernel {
    const vulkan::Pipeline* pipeline;
    uint32_t tensors, numbers;
    uint64_t written;
    c10::SmallVector<uint32_t, 4> grid;
    int64_t rows_per_group;
    c10::SmallVector<uint64_t, 4> slots;  // of its errors, behind the numbers
};

namespace {

void check_device(const anymps_aoti_source& source) {
    const vulkan::DeviceInfo& info = runtime::device_info();
    const bool fits = info.is_software == (source.software != 0) && info.subgroup_size == source.subgroup &&
                      (info.float32_atomic_add || source.float_atomics == 0);
    TORCH_CHECK(fits, "The kernels of this module were compiled for ", source.device, ", and the device is ",
                info.name, ", which differs in what they count on (a subgroup of ", info.subgroup_size,
                " threads): compile the model on this device.");
}

anymps_aoti_kernel* create(const anymps_aoti_source& source) {
    check_device(source);
    auto kernel = std::make_unique<anymps_aoti_kernel>();
    const std::array specialization{source.workgroup, source.subgroup};
    kernel->pipeline =
        &kernels::run_time_kernel(source.name, std::span(source.words, source.word_count), specialization);
    kernel->tensors = source.tensors;
    kernel->numbers = source.numbers;
    kernel->written = source.written;
    kernel->grid.append(source.grid, source.grid + source.grid_count);
    kernel->rows_per_group = source.rows_per_group;
    for (const char* message : std::span(source.messages, source.message_count)) {
        const runtime::ErrorSlot slot = runtime::encoder().message_slot(message);
        kernel->slots.push_back(slot.address);
        kernel->slots.push_back(slot.code);
    }
    return kernel.release();
}

uint64_t workgroups(const anymps_aoti_kernel& kernel, const uint64_t* numbers) {
    int64_t rows = 1;
    for (const uint32_t i : kernel.grid) {
        const auto factor = static_cast<int64_t>(numbers[i]);
        TORCH_CHECK_VALUE(factor >= 0 && !__builtin_mul_overflow(rows, factor, &rows),
                          "a kernel's number of rows is negative or too large: ", factor);
    }
    return static_cast<uint64_t>(rows / kernel.rows_per_group + (rows % kernel.rows_per_group != 0));
}

void launch(const anymps_aoti_kernel& kernel, const AtenTensorHandle* tensors, const uint64_t* numbers) {
    c10::SmallVector<uint64_t, 32> words;
    c10::SmallVector<runtime::Access, 16> accesses;
    for (uint32_t i = 0; i < kernel.tensors; ++i) {
        const at::Tensor& tensor = *torch::aot_inductor::tensor_handle_to_tensor_pointer(tensors[i]);
        TORCH_CHECK(tensor.is_mps(), "tensor ", i, " of the kernel ", kernel.pipeline->name(),
                    " must be on mps, and is on ", tensor.device());
        const bool write = (kernel.written >> i) & 1;
        if (write) tensor.mutable_data_ptr();  // gives a copy-on-write storage memory of its own
        const at::Storage& storage = tensor.storage();
        words.push_back(kernels::address(tensor));
        accesses.push_back({reinterpret_cast<uint64_t>(storage.data()), storage.nbytes(), write});
    }
    words.append(numbers, numbers + kernel.numbers);
    words.append(kernel.slots.begin(), kernel.slots.end());
    anymps_launch_kernel(const_cast<vulkan::Pipeline*>(kernel.pipeline), words.data(),
                         sizeof(uint64_t) * words.size(), workgroups(kernel, numbers), accesses.data(),
                         accesses.size());
}

}  // namespace

AOTITorchError anymps_aoti_create_kernel(const anymps_aoti_source* source, anymps_aoti_kernel** kernel) {
    AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({ *kernel = create(*source); });
}

AOTITorchError anymps_aoti_launch(const anymps_aoti_kernel* kernel, const AtenTensorHandle* tensors,
                                  const uint64_t* numbers) {
    AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({ launch(*kernel, tensors, numbers); });
}
