// PyTorch's Python objects in the stable ABI of Python 3.10 and later, which PyTorch's own headers do not
// fit.
#pragma once

#include <Python.h>

#include <ATen/core/TensorBase.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <exception>

#include "runtime/hazards.h"

// Exported by libtorch_python.
namespace torch {
void translate_exception_to_python(const std::exception_ptr& exception);
}

namespace anymps::python {

// Whether PyTorch's objects are laid out as this module reads them; false with Python's error set. Called
// once, before anything else of this file.
bool verify_layouts(PyObject* torch);

bool is_tensor(PyObject* object);
const at::TensorBase& tensor_of(PyObject* object);  // of one that is_tensor
bool is_dtype(PyObject* object);
c10::ScalarType scalar_type_of(PyObject* object);  // of one that is_dtype

// The name of an object's type; valid until the next call in the thread.
const char* type_name(PyObject* object);

// What an operator of the core library without arguments answers; false with Python's error set.
bool ask(const char* op, uint64_t* answer);

// The device address of argument i's first element, and its memory; false with Python's error set where the
// object is no tensor on mps (TypeError, RuntimeError).
bool pack_tensor(int i, PyObject* object, bool write, uint64_t* address, runtime::Access* access);

// The function's result; nullptr with Python's error set, of PyTorch's types, where it throws.
template <class Function>
PyObject* translated(Function function) {
    try {
        return function();
    } catch (const std::exception&) {
        torch::translate_exception_to_python(std::current_exception());
        return nullptr;
    }
}

// launch_user_kernel(kernel, function, args, tensors, places, extent, group_size, mode): see its docstring.
PyObject* launch_user_kernel(PyObject* self, PyObject* const* args, Py_ssize_t count);
extern const char launch_user_kernel_doc[];

}  // namespace anymps::python
