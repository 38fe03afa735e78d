// Checks and exchanges of all parameters of a unit, one native call for a pass.
#ifndef PARAMSHARD_PYTHON_BINDINGS_PARAMETER_PLACES_H_
#define PARAMSHARD_PYTHON_BINDINGS_PARAMETER_PLACES_H_

#include <nanobind/nanobind.h>

namespace paramshard::python {

// Functions on tuples of paramshard.torch.unit_parameter.ParameterRow. They keep nothing, so that the garbage collector
// sees all references.
void BindParameterPlaces(nanobind::module_& module);

}  // namespace paramshard::python

#endif  // PARAMSHARD_PYTHON_BINDINGS_PARAMETER_PLACES_H_
