// How Python calls the client library: statuses are exceptions, and nothing waits with the interpreter's lock.
#ifndef PARAMSHARD_CLIENT_PYTHON_BINDINGS_CALLS_H_
#define PARAMSHARD_CLIENT_PYTHON_BINDINGS_CALLS_H_

#include <nanobind/nanobind.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace paramshard::python {

// The exception of paramshard.errors that the status is.
nanobind::object ErrorOf(const absl::Status& status);

// Throws nb::python_error of the class of paramshard.errors that the code has; or what a signal handler has raised,
// if that is why a call was interrupted. With the interpreter's lock.
[[noreturn]] void Raise(const absl::Status& status);

// Throws a TypeError: "WANTED, got VALUE".
[[noreturn]] void RaiseType(absl::string_view wanted, nanobind::handle value);

// Hold the interpreter's lock, and let go of it. A thread that asks for the lock when the interpreter has ended never
// gets it: it stands still until the process ends. Python itself would unwind its stack, which ends the process, since
// C++ has frames that let nothing pass.
class InterpreterLock {
 public:
  InterpreterLock();
  ~InterpreterLock() { PyGILState_Release(state_); }
  InterpreterLock(const InterpreterLock&) = delete;
  InterpreterLock& operator=(const InterpreterLock&) = delete;

 private:
  PyGILState_STATE state_;
};
class InterpreterUnlock {
 public:
  InterpreterUnlock() : state_(PyEval_SaveThread()) {}
  ~InterpreterUnlock();
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

// What `call` returns, without the interpreter's lock while it runs.
template <typename Call>
auto Unlocked(Call call) {
  const InterpreterUnlock unlocked;
  return call();
}

// The value as a T; a TypeError where it is none: "commit: learning_rate: want a number, got 'a'".
template <typename T>
T As(nanobind::handle value, absl::string_view wanted) {
  T as{};
  if (!nanobind::try_cast(value, as)) RaiseType(wanted, value);
  return as;
}

// Client::Options::interrupted: runs the handlers of signals that have come. CANCELLED when one raised an exception,
// which is then the thread's. Without the lock, on any thread; handlers run on the main one alone.
absl::Status RunSignalHandlers();

}  // namespace paramshard::python

#endif  // PARAMSHARD_CLIENT_PYTHON_BINDINGS_CALLS_H_
