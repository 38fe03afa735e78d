#include "python/bindings/parameter_places.h"

#include <nanobind/nanobind.h>

#include <utility>

#include "python/bindings/attributes.h"

namespace paramshard::python {
namespace {

namespace nb = nanobind;

bool RequiresGrad(nb::handle tensor, nb::handle expected) {
  static const Name requires_grad("requires_grad");
  return Attribute(tensor, requires_grad).is(expected);
}

nb::object AddressOf(nb::handle tensor) {
  static const Name data_ptr("data_ptr");
  return CallMethod(tensor, data_ptr);
}

// Fields of a ParameterRow.
enum Field : int { kPlaceholder, kUnsharded, kMemory, kContents, kPlaces };

// Borrowed references, which the row keeps.
class Row {
 public:
  explicit Row(nb::handle row) : row_(row.ptr()) {}

  nb::handle operator[](Field field) const { return ItemOf(row_, field); }

  // Calls visit(parameters, attribute) for the dict of each module that has the parameter, until it returns false.
  template <typename Visit>
  bool ForEachPlace(Visit visit) const {
    static const Name own_parameters("_parameters");
    PyObject* const places = (*this)[kPlaces].ptr();
    const Py_ssize_t count = PyTuple_Size(places);
    if (count < 0) nb::raise_python_error();
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* const place = ItemOf(places, i).ptr();
      // The attribute is the module's own: nn.Module's __getattr__ takes longer.
      const nb::object parameters = Owned(PyObject_GenericGetAttr(ItemOf(place, 0).ptr(), own_parameters.ptr()));
      if (!visit(parameters, ItemOf(place, 1))) return false;
    }
    return true;
  }

 private:
  static nb::handle ItemOf(PyObject* tuple, Py_ssize_t index) {
    PyObject* const item = PyTuple_GetItem(tuple, index);
    if (item == nullptr) nb::raise_python_error();
    return item;
  }

  PyObject* row_;
};

// Returns true if test(row) is true of all rows.
template <typename Test>
bool AllOf(const nb::tuple& rows, Test test) {
  const size_t count = rows.size();
  for (size_t i = 0; i < count; ++i) {
    if (!test(Row(rows[i]), i)) return false;
  }
  return true;
}

bool IsInPlace(const Row& row) {
  return row.ForEachPlace([&](nb::handle parameters, nb::handle attribute) {
    PyObject* const found = PyDict_GetItemWithError(parameters.ptr(), attribute.ptr());
    if (found == nullptr && PyErr_Occurred() != nullptr) nb::raise_python_error();
    return found != nullptr && (found == row[kPlaceholder].ptr() || found == row[kUnsharded].ptr());
  });
}

void Put(const nb::tuple& rows, Field field) {
  AllOf(rows, [&](const Row& row, size_t) {
    return row.ForEachPlace([&](nb::handle parameters, nb::handle attribute) {
      if (PyDict_SetItem(parameters.ptr(), attribute.ptr(), row[field].ptr()) != 0) nb::raise_python_error();
      return true;
    });
  });
}

bool MayGather(const nb::tuple& rows, const nb::tuple& trained, nb::handle placeholder_type) {
  if (rows.size() != trained.size()) return false;
  return AllOf(rows, [&](const Row& row, size_t i) {
    // torch.utils.swap_tensors makes another tensor of the same object.
    return row[kPlaceholder].type().is(placeholder_type) && IsInPlace(row) &&
           RequiresGrad(row[kPlaceholder], trained[i]) && RequiresGrad(row[kUnsharded], trained[i]);
  });
}

bool IsUntouched(const Row& row, nb::handle version, nb::handle trained) {
  static const Name version_of("_version");
  const nb::handle unsharded = row[kUnsharded];
  return Attribute(unsharded, version_of).equal(version) && PyList_Size(row[kContents].ptr()) == 0 &&
         AddressOf(unsharded).equal(AddressOf(row[kMemory])) && RequiresGrad(unsharded, trained) && IsInPlace(row);
}

bool PutBack(const nb::tuple& rows, const nb::int_& version, const nb::tuple& trained) {
  if (rows.size() != trained.size()) return false;
  if (!AllOf(rows, [&](const Row& row, size_t i) { return IsUntouched(row, version, trained[i]); })) return false;
  Put(rows, kPlaceholder);
  return true;
}

// A property of torch.Tensor, for subclasses that have another of its name.
class TensorProperty {
 public:
  explicit TensorProperty(nb::handle property) : property_(property) {}

  nb::object Get(nb::handle tensor) const {
    static const Name get("__get__");
    return Owned(PyObject_CallMethodObjArgs(property_.ptr(), get.ptr(), tensor.ptr(), nullptr));
  }
  void SetNone(nb::handle tensor) const {
    static const Name set("__set__");
    Owned(PyObject_CallMethodObjArgs(property_.ptr(), set.ptr(), tensor.ptr(), Py_None, nullptr));
  }

 private:
  nb::handle property_;
};

nb::list TakeGradients(const nb::tuple& rows, nb::handle grad) {
  const TensorProperty property(grad);
  nb::list gradients;
  AllOf(rows, [&](const Row& row, size_t) {
    nb::object gradient = property.Get(row[kUnsharded]);
    if (!gradient.is_none()) property.SetNone(row[kUnsharded]);
    gradients.append(std::move(gradient));
    return true;
  });
  return gradients;
}

}  // namespace

void BindParameterPlaces(nb::module_& module) {
  module.def("may_gather", &MayGather, nb::arg("rows"), nb::arg("trained"), nb::arg("placeholder_type"),
             "Returns True if the placeholders are of this type, and the modules have the parameters of `rows`, in "
             "either form, and both forms have requires_grad as `trained` says.");
  module.def(
      "put_unsharded", [](const nb::tuple& rows) { Put(rows, kUnsharded); }, nb::arg("rows"),
      "Puts the parameters with memory into the modules.");
  module.def("put_back", &PutBack, nb::arg("rows"), nb::arg("version"), nb::arg("trained"),
             "Puts the placeholders into the modules and returns True, if nothing has happened to the parameters since "
             "they were gathered with this version and requires_grad as `trained` says. Else changes nothing.");
  module.def("take_gradients", &TakeGradients, nb::arg("rows"), nb::arg("grad"),
             "Takes the gradients that autograd has accumulated away from the parameters: None where there is none. "
             "`grad` is torch.Tensor.grad.");
}

}  // namespace paramshard::python
