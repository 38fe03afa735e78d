#include "python/bindings/calls.h"

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

void RaiseType(absl::string_view wanted, nb::handle value) {
  constexpr size_t kLongest = 80;  // an array's text has many lines
  const std::string text = nb::repr(value).c_str();
  throw nb::type_error(
      absl::StrCat(wanted, ", got ", text.size() <= kLongest ? text : nb::repr(value.type()).c_str()).c_str());
}

absl::Status RunSignalHandlers() {
  bool raised = false;
  Locked([&] { raised = PyErr_Occurred() != nullptr || PyErr_CheckSignals() != 0; });
  return raised ? absl::CancelledError("interrupted by a signal") : absl::OkStatus();
}

}  // namespace paramshard::python
