// Model specs between Python's dataclasses (paramshard/spec.py) and the client library.
#ifndef PARAMSHARD_PYTHON_BINDINGS_SPEC_H_
#define PARAMSHARD_PYTHON_BINDINGS_SPEC_H_

#include <nanobind/nanobind.h>

#include "client/client.h"

namespace paramshard::python {

// Throws TypeError or InvalidArgumentError that names class and field.
ModelSpec SpecFromPython(nanobind::handle spec);
// A paramshard.spec.ModelSpec.
nanobind::object SpecToPython(const ModelSpec& spec);

}  // namespace paramshard::python

#endif  // PARAMSHARD_PYTHON_BINDINGS_SPEC_H_
