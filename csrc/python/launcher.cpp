// torch_anymps._launcher: what a compiled graph calls once a kernel, in the stable ABI of Python 3.10 and
// later. The core library has no Python API; addresses of two of its functions come through torch.ops.anymps.
#include <Python.h>

#include <ATen/core/TensorBase.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <cstring>
#include <memory>

#include "python/torch_objects.h"
#include "runtime/hazards.h"

// Exported by libtorch_python.
PyObject* THPVariable_Wrap(at::TensorBase&& tensor);

namespace {

using namespace anymps::python;
using anymps::runtime::Access;
using Launch = void (*)(void* pipeline, const void* args, size_t bytes, uint64_t groups,
                        const Access* accesses, size_t count);
using EmptyStrided = c10::TensorImpl* (*)(const int64_t* sizes, const int64_t* strides, size_t dims,
                                          c10::ScalarType dtype);

constexpr int kMaxArguments = 64;

struct Kernel {
    void* pipeline;
    Launch launch;
    int tensors, ints;
    uint64_t written;  // bit i: tensor i is written
    int factors;       // how many of grid there are
    int grid[kMaxArguments];
    int64_t rows_per_group;
};

bool pack_number(const Kernel& kernel, int i, PyObject* object, uint64_t* word) {
    if (PyFloat_Check(object)) {
        const auto value = static_cast<float>(PyFloat_AsDouble(object));
        *word = 0;
        std::memcpy(word, &value, sizeof(value));
        return true;
    }
    const long long value = PyLong_AsLongLong(object);
    if (value == -1 && PyErr_Occurred()) [[unlikely]] {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Clear();
            PyErr_Format(PyExc_TypeError, "argument %d must be an int or a float, not %s", i + kernel.tensors,
                         type_name(object));
        }
        return false;
    }
    *word = static_cast<uint64_t>(value);
    return true;
}

// The workgroups of a launch; false with Python's error set.
bool count_groups(const Kernel& kernel, PyObject* const* numbers, const uint64_t* words, uint64_t* groups) {
    int64_t rows = 1;
    for (int k = 0; k < kernel.factors; ++k) {
        const int i = kernel.grid[k];
        const auto factor = static_cast<int64_t>(words[i]);
        if (PyFloat_Check(numbers[i])) [[unlikely]] {
            PyErr_Format(PyExc_TypeError, "argument %d is a factor of the number of rows and must be an int",
                         i + kernel.tensors);
            return false;
        }
        if (factor < 0 || __builtin_mul_overflow(rows, factor, &rows)) [[unlikely]] {
            PyErr_Format(PyExc_ValueError, "argument %d makes the number of rows negative or too large: %lld",
                         i + kernel.tensors, static_cast<long long>(factor));
            return false;
        }
    }
    *groups = static_cast<uint64_t>(rows / kernel.rows_per_group + (rows % kernel.rows_per_group != 0));
    return true;
}

PyObject* launch(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    const Kernel& kernel = *static_cast<const Kernel*>(PyCapsule_GetPointer(self, nullptr));
    const int tensors = kernel.tensors, ints = kernel.ints;
    if (count != tensors + ints) [[unlikely]] {
        PyErr_Format(PyExc_TypeError,
                     "the kernel takes %d tensors and %d numbers, and %zd arguments were given", tensors,
                     ints, count);
        return nullptr;
    }
    uint64_t words[kMaxArguments];
    Access accesses[kMaxArguments];
    // The GIL is held: a launch takes less time than giving it back.
    return translated([&]() -> PyObject* {
        for (int i = 0; i < tensors; ++i) {
            const bool write = (kernel.written >> i) & 1;
            if (!pack_tensor(i, args[i], write, &words[i], &accesses[i])) return nullptr;
        }
        for (int i = 0; i < ints; ++i) {
            if (!pack_number(kernel, i, args[tensors + i], &words[tensors + i])) return nullptr;
        }
        uint64_t groups = 0;
        if (!count_groups(kernel, args + tensors, words + tensors, &groups)) return nullptr;
        if (groups > 0) {
            kernel.launch(kernel.pipeline, words, sizeof(uint64_t) * count, groups, accesses, tensors);
        }
        Py_INCREF(Py_None);
        return Py_None;
    });
}

PyMethodDef launch_method = {"launch", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(launch)),
                             METH_FASTCALL, nullptr};

void delete_kernel(PyObject* capsule) {
    delete static_cast<Kernel*>(PyCapsule_GetPointer(capsule, nullptr));
}

bool fill_grid(Kernel* kernel, PyObject* grid) {
    const Py_ssize_t factors = PyTuple_Size(grid);
    if (factors < 0) return false;
    if (factors > kMaxArguments) {
        PyErr_SetString(PyExc_ValueError, "grid has too many entries");
        return false;
    }
    for (Py_ssize_t k = 0; k < factors; ++k) {
        const long index = PyLong_AsLong(PyTuple_GetItem(grid, k));
        if (index == -1 && PyErr_Occurred()) return false;
        if (index < 0 || index >= kernel->ints) {
            PyErr_Format(PyExc_ValueError, "grid names int %ld of %d", index, kernel->ints);
            return false;
        }
        kernel->grid[k] = static_cast<int>(index);
    }
    kernel->factors = static_cast<int>(factors);
    return true;
}

PyObject* make(PyObject*, PyObject* args) {
    unsigned long long pipeline = 0, function = 0, written = 0;
    long long rows_per_group = 0;
    int tensors = 0, ints = 0;
    PyObject* grid = nullptr;
    if (!PyArg_ParseTuple(args, "KKiKiO!L:make", &pipeline, &function, &tensors, &written, &ints,
                          &PyTuple_Type, &grid, &rows_per_group)) {
        return nullptr;
    }
    if (pipeline == 0 || function == 0 || tensors < 0 || ints < 0 || rows_per_group < 1) {
        PyErr_SetString(PyExc_ValueError, "make() takes addresses, counts, and at least one row a group");
        return nullptr;
    }
    if (tensors > kMaxArguments || ints > kMaxArguments - tensors) {
        PyErr_Format(PyExc_ValueError, "a kernel takes at most %d arguments, not %d tensors and %d numbers",
                     kMaxArguments, tensors, ints);
        return nullptr;
    }
    auto kernel = std::make_unique<Kernel>();
    kernel->pipeline = reinterpret_cast<void*>(pipeline);
    kernel->launch = reinterpret_cast<Launch>(function);
    kernel->tensors = tensors;
    kernel->ints = ints;
    kernel->written = written;
    kernel->rows_per_group = rows_per_group;
    if (!fill_grid(kernel.get(), grid)) return nullptr;
    PyObject* capsule = PyCapsule_New(kernel.get(), nullptr, delete_kernel);
    if (!capsule) return nullptr;
    kernel.release();
    PyObject* result = PyCFunction_NewEx(&launch_method, capsule, nullptr);
    Py_DECREF(capsule);
    return result;
}

bool unpack(PyObject* tuple, const char* name, c10::SmallVectorImpl<int64_t>* values) {
    if (!PyTuple_Check(tuple)) {
        PyErr_Format(PyExc_TypeError, "%s must be a tuple, not %s", name, type_name(tuple));
        return false;
    }
    const Py_ssize_t count = PyTuple_Size(tuple);
    for (Py_ssize_t i = 0; i < count; ++i) {
        const long long value = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
        if (value == -1 && PyErr_Occurred()) return false;
        values->push_back(value);
    }
    return true;
}

PyObject* empty_strided(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (count != 3 || !is_dtype(args[2])) {
        PyErr_SetString(PyExc_TypeError,
                        "empty_strided() takes a tuple of sizes, one of strides and a torch.dtype");
        return nullptr;
    }
    c10::SmallVector<int64_t, 8> sizes, strides;
    if (!unpack(args[0], "sizes", &sizes) || !unpack(args[1], "strides", &strides)) return nullptr;
    if (sizes.size() != strides.size()) {
        PyErr_Format(PyExc_RuntimeError, "mismatch in length of strides and shape: %zd sizes and %zd strides",
                     static_cast<Py_ssize_t>(sizes.size()), static_cast<Py_ssize_t>(strides.size()));
        return nullptr;
    }
    static EmptyStrided function = nullptr;
    if (!function) {
        uint64_t address = 0;
        if (!ask("empty_strided_function", &address)) return nullptr;
        function = reinterpret_cast<EmptyStrided>(address);
    }
    return translated([&] {
        const c10::ScalarType dtype = scalar_type_of(args[2]);
        return THPVariable_Wrap(at::TensorBase(c10::intrusive_ptr<c10::TensorImpl>::reclaim(
            function(sizes.data(), strides.data(), sizes.size(), dtype))));
    });
}

PyObject* are_at(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (count != 3 || !PyList_Check(args[0]) || !PyTuple_Check(args[1]) || !PyTuple_Check(args[2]) ||
        PyTuple_Size(args[1]) != PyTuple_Size(args[2])) {
        PyErr_SetString(PyExc_TypeError,
                        "are_at() takes a list of tensors, a tuple of indices and one of as many addresses");
        return nullptr;
    }
    return translated([&]() -> PyObject* {
        const Py_ssize_t number = PyTuple_Size(args[1]);
        for (Py_ssize_t k = 0; k < number; ++k) {
            const Py_ssize_t i = PyLong_AsSsize_t(PyTuple_GetItem(args[1], k));
            if (i == -1 && PyErr_Occurred()) return nullptr;
            PyObject* object = PyList_GetItem(args[0], i);  // with IndexError where there is none
            if (!object) return nullptr;
            if (!is_tensor(object)) {
                PyErr_Format(PyExc_TypeError, "item %zd must be a tensor, not %s", i, type_name(object));
                return nullptr;
            }
            const unsigned long long address = PyLong_AsUnsignedLongLong(PyTuple_GetItem(args[2], k));
            if (address == -1ull && PyErr_Occurred()) return nullptr;
            const void* data = tensor_of(object).const_data_ptr();
            if (reinterpret_cast<uint64_t>(data) != address) return PyBool_FromLong(0);
        }
        return PyBool_FromLong(1);
    });
}

PyMethodDef methods[] = {
    {"make", make, METH_VARARGS,
     "make(handle, launch_function, tensors, written, ints, grid, rows_per_group) -> callable\n\n"
     "A callable (t0, .., i0, ..) that launches the kernel torch.ops.anymps.create_kernel() gave, by the "
     "address "
     "torch.ops.anymps.launch_function() gives. Bit i of `written`: tensor i is written. The kernel gets the "
     "tensors' addresses, 8 bytes each, then the numbers: ints as int64, floats as float32 in the low half "
     "of 8 "
     "bytes; pushed up to 128 bytes, else by `uniform Args* args`. It runs over ceil(rows / rows_per_group) "
     "workgroups, rows being the product of the ints that `grid` names by their indices (1 for an empty "
     "tuple); "
     "nothing is launched for 0 rows. At most 64 arguments. Raises TypeError for a wrong number or kind of "
     "arguments, RuntimeError for a tensor that is not on mps, ValueError for negative rows."},
    {"empty_strided", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(empty_strided)),
     METH_FASTCALL,
     "empty_strided(sizes: tuple, strides: tuple, dtype) -> Tensor\n\n"
     "torch.empty_strided(sizes, strides, dtype=dtype, device='mps') without the dispatcher: modes and "
     "subclasses do not see it."},
    {"are_at", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(are_at)), METH_FASTCALL,
     "are_at(tensors: list, indices: tuple, addresses: tuple) -> bool\n\n"
     "Whether the tensors of these indices have these data_ptr(), in 20 ns each. Raises TypeError where an "
     "item is no tensor, IndexError where there is none."},
    {"launch_user_kernel", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(launch_user_kernel)),
     METH_FASTCALL, launch_user_kernel_doc},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT,
                      "torch_anymps._launcher",
                      "Launches of run-time kernels from Python.",
                      -1,
                      methods,
                      nullptr,
                      nullptr,
                      nullptr,
                      nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__launcher() {
    PyObject* torch = PyImport_ImportModule("torch");
    if (!torch) return nullptr;
    const bool fits = verify_layouts(torch);
    Py_DECREF(torch);
    return fits ? PyModule_Create(&module) : nullptr;
}
