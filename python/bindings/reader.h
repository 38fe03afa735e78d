// Readers of a model's weights as classes of Python.
#ifndef PARAMSHARD_PYTHON_BINDINGS_READER_H_
#define PARAMSHARD_PYTHON_BINDINGS_READER_H_

#include <nanobind/nanobind.h>

namespace paramshard::python {

// Reader, Snapshot, and what these return.
void BindReader(nanobind::module_& module);

}  // namespace paramshard::python

#endif  // PARAMSHARD_PYTHON_BINDINGS_READER_H_
