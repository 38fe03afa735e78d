#include "python/bindings/module_tree.h"

#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "python/bindings/attributes.h"

namespace paramshard::python {
namespace {

namespace nb = nanobind;

// Returns a dict that a module has among its own attributes.
nb::object DictOf(nb::handle module, const Name& name) {
  const nb::object own = Owned(PyObject_GenericGetDict(module.ptr(), nullptr));
  PyObject* const found = PyDict_GetItemWithError(own.ptr(), name.ptr());
  if (found == nullptr && PyErr_Occurred() != nullptr) nb::raise_python_error();
  nb::object dict = found != nullptr ? nb::borrow(found) : Attribute(module, name);
  if (!nb::isinstance<nb::dict>(dict)) throw nb::type_error("module: want dicts of parameters and modules");
  return dict;
}

// Calls `use` with names and values of parameters and modules, of a module and of all inside it, each once.
template <typename Use>
void ForAllIn(nb::handle module, Use use) {
  static const Name parameters("_parameters"), modules("_modules");
  absl::flat_hash_set<PyObject*> seen;
  std::vector<nb::object> left = {nb::borrow(module)};
  while (!left.empty()) {
    const nb::object each = std::move(left.back());
    left.pop_back();
    if (each.is_none() || !seen.insert(each.ptr()).second) continue;
    PyObject *name = nullptr, *value = nullptr;
    const nb::object of_parameters = DictOf(each, parameters), of_modules = DictOf(each, modules);
    for (Py_ssize_t at = 0; PyDict_Next(of_parameters.ptr(), &at, &name, &value) != 0;) {
      use(name);
      use(value);
    }
    for (Py_ssize_t at = 0; PyDict_Next(of_modules.ptr(), &at, &name, &value) != 0;) {
      use(name);
      use(value);
      left.push_back(nb::borrow(value));
    }
  }
}

nb::list ObjectsIn(nb::handle module) {
  nb::list objects;
  ForAllIn(module, [&](PyObject* object) { objects.append(nb::handle(object)); });
  return objects;
}

bool AreObjectsIn(nb::handle module, const nb::list& objects) {
  const Py_ssize_t count = PyList_Size(objects.ptr());
  Py_ssize_t found = 0;
  bool same = true;
  ForAllIn(module, [&](PyObject* object) {
    same = same && found < count && PyList_GetItem(objects.ptr(), found) == object;
    ++found;
  });
  return same && found == count;
}

}  // namespace

void BindModuleTree(nb::module_& module) {
  module.def("objects_in", &ObjectsIn, nb::arg("module"),
             "Returns the names and values of all parameters and modules inside a torch.nn.Module, in an order that "
             "stays as long as they do.");
  module.def("are_objects_in", &AreObjectsIn, nb::arg("module"), nb::arg("objects"),
             "Returns True if `objects_in` would return the same objects.");
}

}  // namespace paramshard::python
