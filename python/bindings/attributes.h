// Attributes and methods of objects of Python by interned names.
#ifndef PARAMSHARD_PYTHON_BINDINGS_ATTRIBUTES_H_
#define PARAMSHARD_PYTHON_BINDINGS_ATTRIBUTES_H_

#include <nanobind/nanobind.h>

namespace paramshard::python {

// An attribute's name, which the interpreter finds by its address. Make it once, as a static object.
class Name {
 public:
  explicit Name(const char* name) : name_(PyUnicode_InternFromString(name)) {}
  PyObject* ptr() const { return name_; }

 private:
  PyObject* name_;  // never freed
};

// Returns a new reference as an object. Throws the exception that Python has if it is null.
inline nanobind::object Owned(PyObject* result) {
  if (result == nullptr) nanobind::raise_python_error();
  return nanobind::steal(result);
}

inline nanobind::object Attribute(nanobind::handle object, const Name& name) {
  return Owned(PyObject_GetAttr(object.ptr(), name.ptr()));
}

// Calls a method without arguments.
inline nanobind::object CallMethod(nanobind::handle object, const Name& name) {
  return Owned(PyObject_CallMethodObjArgs(object.ptr(), name.ptr(), nullptr));
}

}  // namespace paramshard::python

#endif  // PARAMSHARD_PYTHON_BINDINGS_ATTRIBUTES_H_
