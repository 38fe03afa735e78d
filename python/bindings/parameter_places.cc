#include "python/bindings/parameter_places.h"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <utility>
#include <vector>

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

nb::handle ItemOf(nb::handle tuple, Py_ssize_t index) {
  PyObject* const item = PyTuple_GetItem(tuple.ptr(), index);
  if (item == nullptr) nb::raise_python_error();
  return item;
}

// Returns a value of a dict, or null.
PyObject* Find(nb::handle dict, nb::handle key) {
  PyObject* const found = PyDict_GetItemWithError(dict.ptr(), key.ptr());
  if (found == nullptr && PyErr_Occurred() != nullptr) nb::raise_python_error();
  return found;
}

// The dict of a module that has a parameter. Other references are borrowed from the rows.
struct Place {
  nb::handle row;
  nb::handle module;
  nb::handle attribute;
  nb::object parameters = {};
};

// Returns the places of all rows. The modules have left the processor's caches since the last pass: each loop reads
// memory that does not depend on what it reads of other places, so the processor waits for many at a time.
std::vector<Place> PlacesOf(const nb::tuple& rows) {
  static const Name own_parameters("_parameters");
  std::vector<Place> all;
  const size_t count = rows.size();
  all.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const nb::handle row = ItemOf(rows, static_cast<Py_ssize_t>(i)), places = ItemOf(row, kPlaces);
    const Py_ssize_t of_row = PyTuple_Size(places.ptr());
    if (of_row < 0) nb::raise_python_error();
    for (Py_ssize_t place = 0; place < of_row; ++place) {
      all.push_back({row, ItemOf(ItemOf(places, place), 0), ItemOf(ItemOf(places, place), 1)});
    }
  }
  for (Place& place : all) place.parameters = Owned(PyObject_GenericGetDict(place.module.ptr(), nullptr));
  for (Place& place : all) {
    PyObject* const parameters = Find(place.parameters, own_parameters.ptr());
    place.parameters = parameters != nullptr ? nb::borrow(parameters) : Attribute(place.module, own_parameters);
  }
  return all;
}

// Returns true if each place has one form of its parameter.
bool AreInPlace(const std::vector<Place>& places) {
  return std::ranges::all_of(places, [](const Place& place) {
    const nb::handle found = Find(place.parameters, place.attribute);
    return found.ptr() != nullptr &&
           (found.is(ItemOf(place.row, kPlaceholder)) || found.is(ItemOf(place.row, kUnsharded)));
  });
}

void Put(const std::vector<Place>& places, Field field) {
  for (const Place& place : places) {
    PyObject* const form = ItemOf(place.row, field).ptr();
    if (PyDict_SetItem(place.parameters.ptr(), place.attribute.ptr(), form) != 0) nb::raise_python_error();
  }
}

// Returns true if test(row, i) is true of all rows.
template <typename Test>
bool AllOf(const nb::tuple& rows, Test test) {
  const size_t count = rows.size();
  for (size_t i = 0; i < count; ++i) {
    if (!test(ItemOf(rows, static_cast<Py_ssize_t>(i)), i)) return false;
  }
  return true;
}

bool MayGather(const nb::tuple& rows, const nb::tuple& trained, nb::handle placeholder_type) {
  if (rows.size() != trained.size() || !AreInPlace(PlacesOf(rows))) return false;
  return AllOf(rows, [&](nb::handle row, size_t i) {
    const nb::handle placeholder = ItemOf(row, kPlaceholder);
    // torch.utils.swap_tensors makes another tensor of the same object.
    return placeholder.type().is(placeholder_type) && RequiresGrad(placeholder, trained[i]) &&
           RequiresGrad(ItemOf(row, kUnsharded), trained[i]);
  });
}

bool IsUntouched(nb::handle row, nb::handle version, nb::handle trained) {
  static const Name version_of("_version");
  const nb::handle unsharded = ItemOf(row, kUnsharded);
  return Attribute(unsharded, version_of).equal(version) && PyList_Size(ItemOf(row, kContents).ptr()) == 0 &&
         AddressOf(unsharded).equal(AddressOf(ItemOf(row, kMemory))) && RequiresGrad(unsharded, trained);
}

bool PutBack(const nb::tuple& rows, const nb::int_& version, const nb::tuple& trained) {
  if (rows.size() != trained.size()) return false;
  const std::vector<Place> places = PlacesOf(rows);
  const auto is_untouched = [&](nb::handle row, size_t i) { return IsUntouched(row, version, trained[i]); };
  if (!AreInPlace(places) || !AllOf(rows, is_untouched)) return false;
  Put(places, kPlaceholder);
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
  AllOf(rows, [&](nb::handle row, size_t) {
    const nb::handle unsharded = ItemOf(row, kUnsharded);
    nb::object gradient = property.Get(unsharded);
    if (!gradient.is_none()) property.SetNone(unsharded);
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
      "put_unsharded", [](const nb::tuple& rows) { Put(PlacesOf(rows), kUnsharded); }, nb::arg("rows"),
      "Puts the parameters with memory into the modules.");
  module.def("put_back", &PutBack, nb::arg("rows"), nb::arg("version"), nb::arg("trained"),
             "Puts the placeholders into the modules and returns True, if nothing has happened to the parameters since "
             "they were gathered with this version and requires_grad as `trained` says. Else changes nothing.");
  module.def("take_gradients", &TakeGradients, nb::arg("rows"), nb::arg("grad"),
             "Takes the gradients that autograd has accumulated away from the parameters: None where there is none. "
             "`grad` is torch.Tensor.grad.");
}

}  // namespace paramshard::python
