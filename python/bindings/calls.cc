#include "python/bindings/calls.h"

#include <nanobind/stl/string.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "python/bindings/arrays.h"

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
  constexpr size_t kLongest = 80;
  // The text of an array is its values, and takes long.
  std::string text = nb::hasattr(value, "dtype") ? Described(value) : nb::repr(value).c_str();
  if (text.size() > kLongest && !nb::hasattr(value, "dtype")) text = Described(value);
  throw nb::type_error(absl::StrCat(wanted, ", got ", text).c_str());
}

absl::Status RunSignalHandlers() {
  bool raised = false;
  Locked([&] { raised = PyErr_Occurred() != nullptr || PyErr_CheckSignals() != 0; });
  return raised ? absl::CancelledError("interrupted by a signal") : absl::OkStatus();
}

}  // namespace paramshard::python
