#include "client/python/bindings/calls.h"

#include <nanobind/stl/string.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace paramshard::python {

namespace nb = nanobind;

namespace {

// Python ends a thread that comes too late by unwinding its stack. Here that stops.
template <typename Take>
void OrStandStill(Take take) {
  try {
    take();
  } catch (...) {
    while (true) pause();
  }
}

}  // namespace

InterpreterLock::InterpreterLock() {
  OrStandStill([this] { state_ = PyGILState_Ensure(); });
}

InterpreterUnlock::~InterpreterUnlock() {
  OrStandStill([this] { PyEval_RestoreThread(state_); });
}

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
  throw nb::type_error(absl::StrCat(wanted, ", got ", nb::repr(value).c_str()).c_str());
}

absl::Status RunSignalHandlers() {
  const InterpreterLock locked;
  if (PyErr_Occurred() == nullptr && PyErr_CheckSignals() == 0) return absl::OkStatus();
  return absl::CancelledError("interrupted by a signal");
}

}  // namespace paramshard::python
