// The extension module paramshard._core.
#include <nanobind/nanobind.h>

#include "common/model/limits.h"
#include "common/model/names.h"
#include "python/bindings/client.h"
#include "python/bindings/handles.h"
#include "python/bindings/model.h"
#include "python/bindings/module_tree.h"
#include "python/bindings/names.h"
#include "python/bindings/parameter_places.h"
#include "python/bindings/reader.h"
#include "python/bindings/unit_pusher.h"
#include "python/bindings/unit_reader.h"
#include "python/bindings/weights.h"

NB_MODULE(_core, module) {
  // Objects that a cycle, a thread or a traceback holds at the interpreter's end are not freed. This is no fault of the
  // trainer.
  nanobind::set_leak_warnings(false);
  module.doc() = "The client library of paramshard.";
  module.attr("__version__") = PARAMSHARD_VERSION;
  module.attr("MAX_NAME_BYTES") = paramshard::kMaxNameBytes;
  module.attr("MAX_CLIENT_STATE_BYTES") = paramshard::kMaxClientStateBytes;
  module.attr("MAX_READER_DATA_BYTES") = paramshard::kMaxReaderDataBytes;
  paramshard::python::BindNames(module);
  paramshard::python::BindHandles(module);
  paramshard::python::BindUnitReader(module);
  paramshard::python::BindUnitPusher(module);
  paramshard::python::BindModuleTree(module);
  paramshard::python::BindParameterPlaces(module);
  paramshard::python::BindWeights(module);
  paramshard::python::BindModel(module);
  paramshard::python::BindClient(module);
  paramshard::python::BindReader(module);
}
