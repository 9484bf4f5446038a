#include "python/torch_objects.h"

#include <cstring>
#include <string>

namespace anymps::python {
namespace {

// torch/csrc/autograd/python_variable.h and torch/csrc/Dtype.h, whose headers need more than the stable ABI.
// verify_layouts() compares them with live objects.
struct VariableMirror {
    PyObject_HEAD at::TensorBase cdata;
};
struct DtypeMirror {
    PyObject_HEAD c10::ScalarType scalar_type;
    char name[8];  // the beginning
};

PyTypeObject* tensor_type = nullptr;
PyTypeObject* dtype_type = nullptr;

}  // namespace

bool is_tensor(PyObject* object) {
    return Py_TYPE(object) == tensor_type || PyType_IsSubtype(Py_TYPE(object), tensor_type);
}

const at::TensorBase& tensor_of(PyObject* object) {
    return reinterpret_cast<VariableMirror*>(object)->cdata;
}

bool is_dtype(PyObject* object) {
    return Py_TYPE(object) == dtype_type;
}

c10::ScalarType scalar_type_of(PyObject* object) {
    return reinterpret_cast<DtypeMirror*>(object)->scalar_type;
}

bool ask(const char* op, uint64_t* answer) {
    PyObject* torch = PyImport_ImportModule("torch");
    PyObject* ops = torch ? PyObject_GetAttrString(torch, "ops") : nullptr;
    PyObject* anymps = ops ? PyObject_GetAttrString(ops, "anymps") : nullptr;
    PyObject* result = anymps ? PyObject_CallMethod(anymps, op, nullptr) : nullptr;
    if (result) *answer = PyLong_AsUnsignedLongLong(result);
    for (PyObject* object : {torch, ops, anymps, result}) Py_XDECREF(object);
    return result && !PyErr_Occurred();
}

const char* type_name(PyObject* object) {
    static thread_local std::string name;
    PyObject* text = PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(object)), "__name__");
    const char* utf8 = text ? PyUnicode_AsUTF8AndSize(text, nullptr) : nullptr;
    name = utf8 ? utf8 : "an object";
    Py_XDECREF(text);
    PyErr_Clear();
    return name.c_str();
}

bool pack_tensor(int i, PyObject* object, bool write, uint64_t* address, runtime::Access* access) {
    if (!is_tensor(object)) [[unlikely]] {
        PyErr_Format(PyExc_TypeError, "argument %d must be a tensor, not %s", i, type_name(object));
        return false;
    }
    const at::TensorBase& tensor = tensor_of(object);
    if (!tensor.is_mps()) [[unlikely]] {
        const std::string device = tensor.defined() ? tensor.device().str() : "no device";
        PyErr_Format(PyExc_RuntimeError, "argument %d must be a tensor on mps, and is on %s", i,
                     device.c_str());
        return false;
    }
    // The second one gives a copy-on-write storage memory of its own.
    const void* data = write ? tensor.mutable_data_ptr() : tensor.const_data_ptr();
    *address = reinterpret_cast<uint64_t>(data);
    const at::Storage& storage = tensor.storage();
    *access = {reinterpret_cast<uint64_t>(storage.data()), storage.nbytes(), write};
    if (data == nullptr) [[unlikely]] {  // as kernels::address()
        static uint64_t nothing = 0;
        if (nothing == 0 && !ask("address_of_nothing", &nothing)) return false;
        *address = nothing;
        *access = {nothing, 0, false};
    }
    return true;
}

bool verify_layouts(PyObject* torch) {
    PyObject* tensor = PyObject_CallMethod(torch, "empty", "i", 1);
    PyObject* cdata = tensor ? PyObject_GetAttrString(tensor, "_cdata") : nullptr;
    PyObject* dtype = cdata ? PyObject_GetAttrString(torch, "float32") : nullptr;
    bool same = false;
    if (dtype) {
        const auto* variable = reinterpret_cast<VariableMirror*>(tensor);
        const auto* f32 = reinterpret_cast<DtypeMirror*>(dtype);
        same = variable->cdata.unsafeGetTensorImpl() == PyLong_AsVoidPtr(cdata) &&
               f32->scalar_type == c10::ScalarType::Float && std::strcmp(f32->name, "float32") == 0;
        tensor_type = reinterpret_cast<PyTypeObject*>(PyObject_GetAttrString(torch, "Tensor"));
        dtype_type = Py_TYPE(dtype);
        if (!same) {
            PyErr_SetString(PyExc_ImportError,
                            "This build of PyTorch lays out its tensor objects otherwise than the one that "
                            "torch_anymps._launcher was built for; reinstall torch-anymps for it.");
        }
    }
    for (PyObject* object : {tensor, cdata, dtype}) Py_XDECREF(object);
    return same && tensor_type;
}

}  // namespace anymps::python
