// How Python calls the client library: statuses are exceptions, and nothing waits with the interpreter's lock.
#ifndef PARAMSHARD_CLIENT_PYTHON_BINDINGS_CALLS_H_
#define PARAMSHARD_CLIENT_PYTHON_BINDINGS_CALLS_H_

#include <nanobind/nanobind.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace paramshard::python {

// The exception of paramshard.errors that the status is.
nanobind::object ErrorOf(const absl::Status& status);

// Throws nb::python_error of the class of paramshard.errors that the code has; or what a signal handler has raised,
// if that is why a call was interrupted. With the interpreter's lock.
[[noreturn]] void Raise(const absl::Status& status);

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
  const nanobind::gil_scoped_release unlocked;
  return call();
}

// Client::Options::interrupted: runs the handlers of signals that have come. CANCELLED when one raised an exception,
// which is then the thread's. Without the lock, on any thread; handlers run on the main one alone.
absl::Status RunSignalHandlers();

}  // namespace paramshard::python

#endif  // PARAMSHARD_CLIENT_PYTHON_BINDINGS_CALLS_H_
