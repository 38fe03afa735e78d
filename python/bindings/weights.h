// Weights in safetensors files, for Python.
#ifndef PARAMSHARD_PYTHON_BINDINGS_WEIGHTS_H_
#define PARAMSHARD_PYTHON_BINDINGS_WEIGHTS_H_

#include <nanobind/nanobind.h>

namespace paramshard::python {

void BindWeights(nanobind::module_& module);

}  // namespace paramshard::python

#endif  // PARAMSHARD_PYTHON_BINDINGS_WEIGHTS_H_
