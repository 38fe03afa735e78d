// The objects that a module of torch consists of.
#ifndef PARAMSHARD_PYTHON_BINDINGS_MODULE_TREE_H_
#define PARAMSHARD_PYTHON_BINDINGS_MODULE_TREE_H_

#include <nanobind/nanobind.h>

namespace paramshard::python {

// Functions for paramshard.torch.module_tree. They keep nothing.
void BindModuleTree(nanobind::module_& module);

}  // namespace paramshard::python

#endif  // PARAMSHARD_PYTHON_BINDINGS_MODULE_TREE_H_
