// The extension module paramshard._core.
#include <nanobind/nanobind.h>

#include "client/python/bindings/client.h"
#include "client/python/bindings/handles.h"
#include "client/python/bindings/model.h"
#include "client/python/bindings/unit_reader.h"
#include "client/python/bindings/weights.h"

NB_MODULE(_core, module) {
  // What a cycle, a thread or a traceback holds at the interpreter's end is not freed, and that is no fault of a trainer
  // which ends so.
  nanobind::set_leak_warnings(false);
  module.doc() = "The client library of paramshard.";
  module.attr("__version__") = PARAMSHARD_VERSION;
  paramshard::python::BindHandles(module);
  paramshard::python::BindUnitReader(module);
  paramshard::python::BindWeights(module);
  paramshard::python::BindModel(module);
  paramshard::python::BindClient(module);
}
