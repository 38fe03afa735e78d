// Client as a class of Python.
#ifndef PARAMSHARD_PYTHON_BINDINGS_CLIENT_H_
#define PARAMSHARD_PYTHON_BINDINGS_CLIENT_H_

#include <nanobind/nanobind.h>

#include <memory>
#include <string>

#include "client/client.h"

namespace paramshard::python {

class PyClient {
 public:
  explicit PyClient(const Client::Options& options);

  // Throws FAILED_PRECONDITION once it is closed. Thread-safe; the client lives until the last call has returned.
  std::shared_ptr<Client> Get() const;
  void Close() { client_.reset(); }

 private:
  std::shared_ptr<Client> client_;  // guarded by the interpreter's lock
};

// Returns the name of a checkpoint: text as it is, a number as a step, a path as an absolute path, because the daemon
// has another working directory. Throws TypeError.
std::string CheckpointOf(nanobind::handle object);

void BindClient(nanobind::module_& module);
// Its methods import_tensors and export_tensors, with their types.
void BindTransfers(nanobind::module_& module, nanobind::class_<PyClient>& client);
// save, saves and restore.
void BindSaves(nanobind::module_& module, nanobind::class_<PyClient>& client);
// daemon_info and models.
void BindDaemon(nanobind::module_& module, nanobind::class_<PyClient>& client);

}  // namespace paramshard::python

#endif  // PARAMSHARD_PYTHON_BINDINGS_CLIENT_H_
