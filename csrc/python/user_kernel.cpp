// Launches of the kernels of torch.mps.compile_shader.
#include <c10/util/SmallVector.h>

#include <cstring>

#include "python/torch_objects.h"

namespace anymps::python {
namespace {

using Launch = void (*)(void* kernel, void* args, size_t bytes, const uint32_t extent[3],
                        const uint32_t group_size[3], int mode, const runtime::Access* accesses,
                        size_t count);

// False with Python's error set, where the tuple is not three numbers of 32 bits.
bool unpack_extent(PyObject* tuple, uint32_t* extent) {
    for (Py_ssize_t i = 0; i < 3; ++i) {
        PyObject* item =
            PyTuple_Check(tuple) && PyTuple_Size(tuple) == 3 ? PyTuple_GetItem(tuple, i) : nullptr;
        const unsigned long long value = item ? PyLong_AsUnsignedLongLong(item) : ~0ull;
        if (PyErr_Occurred()) return false;
        if (value > UINT32_MAX) {
            PyErr_SetString(PyExc_ValueError, "a launch takes three counts of 32 bits");
            return false;
        }
        extent[i] = static_cast<uint32_t>(value);
    }
    return true;
}

}  // namespace

const char launch_user_kernel_doc[] =
    "launch_user_kernel(kernel, function, args, tensors, places, extent, group_size, mode)\n\n"
    "Records a launch of the kernel torch.ops.anymps.compile_library() gave, by the address that "
    "torch.ops.anymps.launch_user_kernel_function() gives. args: a bytearray, into which the address of "
    "tensors[i] is written at places[i], or at ~places[i] for a tensor that is only read, or nowhere for "
    "None, "
    "where the kernel finds and writes it by another way. extent: three "
    "counts, of workgroups (mode 0) or of threads (mode 1; mode 2, where no other thread may run). Raises "
    "RuntimeError for a tensor that is not on mps, ValueError for a launch that the device does not take.";

PyObject* launch_user_kernel(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (count != 8 || !PyByteArray_Check(args[2]) || !PyTuple_Check(args[3]) || !PyTuple_Check(args[4]) ||
        PyTuple_Size(args[3]) != PyTuple_Size(args[4])) {
        PyErr_SetString(PyExc_TypeError, "launch_user_kernel() takes what its docstring says");
        return nullptr;
    }
    void* kernel = PyLong_AsVoidPtr(args[0]);
    void* function = PyLong_AsVoidPtr(args[1]);
    char* bytes = PyByteArray_AsString(args[2]);
    const Py_ssize_t size = PyByteArray_Size(args[2]);
    const long mode = PyLong_AsLong(args[7]);
    uint32_t extent[3], group_size[3];
    if (PyErr_Occurred() || !unpack_extent(args[5], extent) || !unpack_extent(args[6], group_size)) {
        return nullptr;
    }
    return translated([&]() -> PyObject* {
        c10::SmallVector<runtime::Access, 16> accesses;
        for (Py_ssize_t i = 0; i < PyTuple_Size(args[3]); ++i) {
            PyObject* item = PyTuple_GetItem(args[4], i);
            const bool placed = item != Py_None;
            const long long place = placed ? PyLong_AsLongLong(item) : 0;
            if (place == -1 && PyErr_Occurred()) return nullptr;
            const bool write = place >= 0;
            const long long at = write ? place : ~place;
            uint64_t address = 0;
            if (placed && at + static_cast<Py_ssize_t>(sizeof(address)) > size) {
                PyErr_SetString(PyExc_ValueError, "a place is beyond the arguments");
                return nullptr;
            }
            if (!pack_tensor(static_cast<int>(i), PyTuple_GetItem(args[3], i), write, &address,
                             &accesses.emplace_back())) {
                return nullptr;
            }
            if (placed) std::memcpy(bytes + at, &address, sizeof(address));
        }
        reinterpret_cast<Launch>(function)(kernel, bytes, size, extent, group_size, static_cast<int>(mode),
                                           accesses.data(), accesses.size());
        Py_INCREF(Py_None);
        return Py_None;
    });
}

}  // namespace anymps::python
