#include "python/bindings/unit_pusher.h"

#include <nanobind/stl/optional.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "python/bindings/attributes.h"
#include "python/bindings/calls.h"

namespace paramshard::python {
namespace {

namespace nb = nanobind;

bool IsTrue(nb::handle answer) { return answer.ptr() == Py_True; }

// Returns a number that a method of a tensor has answered.
uint64_t Number(const nb::object& answer) {
  const auto number = PyLong_AsUnsignedLongLong(answer.ptr());
  if (number == static_cast<unsigned long long>(-1) && PyErr_Occurred() != nullptr) nb::raise_python_error();
  return number;
}

absl::StatusOr<UnitSpec> FindUnit(const Model& model, const std::string& name) {
  for (const UnitSpec& unit : model.spec().units) {
    if (unit.name == name) return unit;
  }
  return absl::NotFoundError(absl::StrCat("unit ", name, ": not found in model ", model.spec().name));
}

}  // namespace

PyUnitPusher::PyUnitPusher(std::shared_ptr<SharedModel> model, std::string unit,
                           const std::vector<std::string>& parameters, Torch torch)
    : model_(std::move(model)), unit_(std::move(unit)), torch_(std::move(torch)) {
  const UnitSpec spec = Take(model_->WithModel([&](Model& open) { return FindUnit(open, unit_); }));
  for (const std::string& name : parameters) {
    const auto found = std::ranges::find(spec.parameters, name, &ParameterSpec::name);
    if (found == spec.parameters.end()) {
      Raise(absl::NotFoundError(absl::StrCat("pusher of ", unit_, ": parameter ", name, ": not found")));
    }
    parameters_.push_back({static_cast<size_t>(found - spec.parameters.begin()), found->rows() * found->columns()});
  }
  std::vector<bool> named(spec.parameters.size(), false);
  for (const Parameter& parameter : parameters_) named[parameter.index] = true;
  if (parameters_.size() != spec.parameters.size() || std::ranges::count(named, false) > 0) {
    Raise(absl::InvalidArgumentError(absl::StrCat("pusher of ", unit_, ": want each of its ", spec.parameters.size(),
                                                  " parameters once, got ", parameters_.size(), " names")));
  }
}

std::optional<ConstGradient> PyUnitPusher::ValuesOf(const Parameter& parameter, nb::handle gradient) const {
  static const Name layout("layout"), dtype("dtype"), is_contiguous("is_contiguous"), is_neg("is_neg"), numel("numel"),
      data_ptr("data_ptr");
  if (!Attribute(gradient, layout).is(torch_.strided)) return std::nullopt;
  const nb::object type = Attribute(gradient, dtype);
  if (!type.is(torch_.float32) && !type.is(torch_.bfloat16)) return std::nullopt;
  if (!IsTrue(CallMethod(gradient, is_contiguous)) || IsTrue(CallMethod(gradient, is_neg))) return std::nullopt;
  if (Number(CallMethod(gradient, numel)) != static_cast<uint64_t>(parameter.elements)) {
    Raise(absl::InvalidArgumentError(absl::StrCat("push ", unit_, ": want gradients of the parameters' shapes")));
  }
  const uint64_t address = Number(CallMethod(gradient, data_ptr));
  if (address == 0) return std::nullopt;                        // zeros without memory
  return ConstGradient(reinterpret_cast<const void*>(address),  // NOLINT(performance-no-int-to-ptr)
                       type.is(torch_.float32) ? GradientType::kFP32 : GradientType::kBF16);
}

bool PyUnitPusher::Push(const nb::list& gradients, std::optional<StreamAddress> stream) const {
  if (gradients.size() != parameters_.size()) {
    Raise(absl::InvalidArgumentError(absl::StrCat("push ", unit_, ": want gradients of ", parameters_.size(),
                                                  " parameters, got ", gradients.size())));
  }
  std::vector<ConstGradient> values(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const nb::handle gradient = gradients[i];
    if (gradient.is_none()) continue;
    const std::optional<ConstGradient> found = ValuesOf(parameters_[i], gradient);
    if (!found.has_value()) return false;
    values[parameters_[i].index] = *found;
  }
  Check(model_->WithModel([&](Model& model) {
    return stream.has_value() ? PushGradientsOn(model, unit_, values, *stream) : model.PushGradients(unit_, values);
  }));
  return true;
}

void BindUnitPusher(nb::module_& module) {
  nb::class_<PyUnitPusher>(module, "UnitPusher", "Pushes a unit's gradients out of tensors, any number of times.")
      .def("push", &PyUnitPusher::Push, nb::arg("gradients"), nb::arg("stream") = nb::none(),
           "Copies the gradients and pushes them, as `Model.gradients` and `UnitGradients.push` do. `gradients`: for "
           "each parameter a tensor of torch, or None if it has no gradient in this push. `stream`, the address of a "
           "CUDA stream of `Model.gpu`: the gradients are memory of that GPU, and this call returns at once; else "
           "they are host memory. Returns False, and has done nothing, if a tensor is not contiguous, or neither "
           "float32 nor bfloat16.");
}

}  // namespace paramshard::python
