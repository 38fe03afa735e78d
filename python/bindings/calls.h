// Calls of the client library from Python: statuses become exceptions, and waits release the interpreter's lock.
#ifndef PARAMSHARD_PYTHON_BINDINGS_CALLS_H_
#define PARAMSHARD_PYTHON_BINDINGS_CALLS_H_

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace paramshard::python {

// Returns the exception of paramshard.errors for the status.
nanobind::object ErrorOf(const absl::Status& status);

// Throws nb::python_error of the class of paramshard.errors for the code; or the exception of a signal handler that has
// interrupted the call. With the interpreter's lock.
[[noreturn]] void Raise(const absl::Status& status);

// Throws a TypeError: "WANTED, got VALUE".
[[noreturn]] void RaiseType(absl::string_view wanted, nanobind::handle value);

// Python ends a thread that asks for the interpreter's lock after the interpreter's end, by unwinding its stack. That
// would end the process, because of noexcept frames of C++. This catches the unwinding, and keeps the thread waiting
// until the process ends.
template <typename Call>
void UntilTheInterpreterEnds(Call call) {
  try {
    call();
  } catch (const abi::__forced_unwind&) {
    while (true) pause();
  }
}

// Runs `call` with the interpreter's lock, on a thread that does not hold it. `call` throws nothing.
template <typename Call>
void Locked(Call call) {
  UntilTheInterpreterEnds([&] {
    const PyGILState_STATE state = PyGILState_Ensure();
    call();
    PyGILState_Release(state);
  });
}

// Releases the interpreter's lock, and takes it again at its end.
class InterpreterUnlock {
 public:
  InterpreterUnlock() : state_(PyEval_SaveThread()) {}
  ~InterpreterUnlock() {
    UntilTheInterpreterEnds([this] { PyEval_RestoreThread(state_); });
  }
  InterpreterUnlock(const InterpreterUnlock&) = delete;
  InterpreterUnlock& operator=(const InterpreterUnlock&) = delete;

 private:
  PyThreadState* const state_;
};

inline void Check(const absl::Status& status) {
  if (!status.ok()) Raise(status);
}

template <typename T>
T Take(absl::StatusOr<T> value) {
  if (!value.ok()) Raise(value.status());
  return *std::move(value);
}

// Runs `call` without the interpreter's lock, and returns its result.
template <typename Call>
auto Unlocked(Call call) {
  const InterpreterUnlock unlocked;
  return call();
}

// Returns the value as a T. Throws TypeError for others: "commit: learning_rate: want a number, got 'a'".
template <typename T>
T As(nanobind::handle value, absl::string_view wanted) {
  T as{};
  if (!nanobind::try_cast(value, as)) RaiseType(wanted, value);
  return as;
}

// Client::Options::interrupted: runs the handlers of signals that have come. CANCELLED if one raised an exception,
// which the thread then has. Without the lock, on any thread; handlers run on the main thread alone.
absl::Status RunSignalHandlers();

}  // namespace paramshard::python

#endif  // PARAMSHARD_PYTHON_BINDINGS_CALLS_H_
