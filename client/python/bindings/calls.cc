#include "client/python/bindings/calls.h"

#include <nanobind/stl/string.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace paramshard::python {

namespace nb = nanobind;

nb::object ErrorOf(const absl::Status& status) {
  const std::string code = absl::StatusCodeToString(status.code());
  const std::string message(status.message());
  return nb::module_::import_("paramshard.errors").attr("of_status")(code, message);
}

void Raise(const absl::Status& status) {
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  const nb::object error = ErrorOf(status);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

absl::Status RunSignalHandlers() {
  const nb::gil_scoped_acquire locked;
  if (PyErr_Occurred() == nullptr && PyErr_CheckSignals() == 0) return absl::OkStatus();
  return absl::CancelledError("interrupted by a signal");
}

}  // namespace paramshard::python
