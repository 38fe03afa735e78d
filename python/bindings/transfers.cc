// Imports and exports of tensors.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "python/bindings/arrays.h"
#include "python/bindings/calls.h"
#include "python/bindings/client.h"
#include "python/bindings/names.h"
#include "python/bindings/types.h"

namespace paramshard::python {
namespace {

namespace nb = nanobind;

using HostArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

// --- Import

TensorType TypeOfArray(const std::string& parameter, const HostArray& array) {
  for (const auto& [type, name] : NamesOf(TensorType())) {
    if (TypeOf(type) == array.dtype()) return type;
  }
  Raise(absl::InvalidArgumentError(absl::StrCat(
      "import ", parameter,
      ": want an array of float32, bfloat16, float16, float8_e4m3fn or int16; for bit patterns set type")));
}

// An array, and the tensor whose values it has.
struct Source {
  HostArray array;
  ImportTensor tensor;
};

Source MakeSource(const std::string& parameter, nb::handle values, const std::optional<std::string>& type) {
  Source source;
  source.tensor.parameter = parameter;
  const std::string what = absl::StrCat("import ", parameter);
  Check(CheckHoldsItsValues(what, values));
  if (!nb::try_cast(values, source.array)) RaiseType(absl::StrCat(what, ": want an array in host memory"), values);
  const HostArray& array = source.array;
  ImportTensor& tensor = source.tensor;
  tensor.type = type.has_value() ? Take(Parse<TensorType>("type", *type)) : TypeOfArray(parameter, array);
  const int64_t columns = array.ndim() == 0 ? 1 : static_cast<int64_t>(array.shape(array.ndim() - 1));
  tensor.rows = columns == 0 ? 0 : static_cast<int64_t>(array.size()) / columns;
  for (size_t i = 0; i < array.ndim(); ++i) tensor.shape.push_back(static_cast<int64_t>(array.shape(i)));
  tensor.bytes = absl::MakeConstSpan(static_cast<const uint8_t*>(array.data()), array.nbytes());
  return source;
}

// A paramshard.ImportTensor.
Source SourceOf(nb::handle object) {
  if (!nb::hasattr(object, "parameter")) RaiseType("import: want a dict or ImportTensors", object);
  const auto parameter = As<std::string>(object.attr("parameter"), "import: want a parameter's name");
  const auto field = [&](const char* name) { return absl::StrCat("import ", parameter, ": ", name); };
  Source source = MakeSource(parameter, object.attr("values"),
                             As<std::optional<std::string>>(object.attr("type"), field("type: want a str or None")));
  source.tensor.kind = Take(Parse<TensorKind>("kind", As<std::string>(object.attr("kind"), field("kind: want a str"))));
  source.tensor.first_row = As<int64_t>(object.attr("first_row"), field("first_row: want an int"));
  source.tensor.step = As<std::optional<int64_t>>(object.attr("step"), field("step: want an int or None"));
  return source;
}

std::vector<Source> SourcesOf(const nb::object& tensors) {
  std::vector<Source> sources;
  if (nb::hasattr(tensors, "keys")) {
    const nb::handle dict(reinterpret_cast<PyObject*>(&PyDict_Type));
    for (const auto& [name, values] : nb::cast<nb::dict>(dict(tensors))) {
      sources.push_back(MakeSource(As<std::string>(name, "import: want a parameter's name"), values, std::nullopt));
    }
  } else {
    for (const nb::handle tensor : tensors) sources.push_back(SourceOf(tensor));
  }
  return sources;
}

void ImportTensors(const PyClient& self, const std::string& model, const Result<named::Tensors>& tensors,
                   std::optional<int64_t> commit_number, std::optional<int64_t> version,
                   const std::optional<std::string>& history_id, const std::string& run) {
  const std::vector<Source> sources = SourcesOf(tensors);
  std::vector<ImportTensor> imported;
  for (const Source& source : sources) imported.push_back(source.tensor);
  const ImportOptions options{
      .commit_number = commit_number, .version = version, .history_id = history_id.value_or(""), .run = run};
  const std::shared_ptr<Client> client = self.Get();
  Check(Unlocked([&] { return client->Import(model, imported, options); }));
}

// --- Export

// The rows of one tensor that one rank of the daemon owns.
class PyExtent {
 public:
  explicit PyExtent(ExportedExtent extent) : extent_(std::move(extent)) {}
  const ExportedExtent& extent() const { return extent_; }

  Result<named::Array> Values() const {
    if (extent_.type != TensorType::kFP32) return Rows(extent_.bytes);
    const auto* const bytes = reinterpret_cast<const uint8_t*>(extent_.values.data());
    return Rows(std::vector<uint8_t>(bytes, bytes + extent_.values.size() * sizeof(float)));
  }

 private:
  // Scales have fewer columns than the tensor.
  nb::object Rows(std::vector<uint8_t> bytes) const {
    const nb::dlpack::dtype type = TypeOf(extent_.type);
    const auto rows = static_cast<size_t>(extent_.rows);
    const size_t columns = rows == 0 ? 0 : bytes.size() / rows / (type.bits / 8);
    return OwnedArray(std::move(bytes), {rows, columns}, type);
  }

  ExportedExtent extent_;
};

struct PyExport {
  ExportSummary summary;
  std::vector<PyExtent> extents;
};

PyExport ExportTensors(const PyClient& self, const std::string& model, const std::vector<std::string>& parameters,
                       const std::vector<std::string>& kinds, std::optional<int64_t> version) {
  ExportOptions options{.version = version, .parameters = parameters};
  for (const std::string& kind : kinds) options.kinds.push_back(Take(Parse<TensorKind>("kind", kind)));
  PyExport exported;
  const std::shared_ptr<Client> client = self.Get();
  exported.summary = Take(Unlocked([&] {
    return client->Export(model, options, [&](const ExportedExtent& extent) {
      exported.extents.emplace_back(extent);
      return RunSignalHandlers();
    });
  }));
  return exported;
}

void BindExtent(nb::module_& module) {
  nb::class_<PyExtent>(module, "ExportedExtent", "Rows of one tensor, as one rank of the daemon owns them.")
      .def_prop_ro("parameter", [](const PyExtent& self) { return self.extent().parameter; })
      .def_prop_ro("kind", [](const PyExtent& self) { return NameOf(self.extent().kind); })
      .def_prop_ro("type", [](const PyExtent& self) { return NameOf(self.extent().type); })
      .def_prop_ro(
          "shape", [](const PyExtent& self) { return self.extent().shape; }, "Shape of the parameter.")
      .def_prop_ro("first_row", [](const PyExtent& self) { return self.extent().first_row; })
      .def_prop_ro("rows", [](const PyExtent& self) { return self.extent().rows; })
      .def_prop_ro(
          "step", [](const PyExtent& self) { return self.extent().step; }, "Number of steps that it has taken.")
      .def_prop_ro("values", &PyExtent::Values,
                   "A new NumPy array, [rows, columns]: float32, or the elements as they are stored.");
  nb::class_<PyExport>(module, "Export", "Tensors of one state, those rows that the daemon owns.")
      .def_prop_ro("version", [](const PyExport& self) { return self.summary.version; })
      .def_prop_ro("commit_number", [](const PyExport& self) { return self.summary.commit_number; })
      .def_prop_ro("history_id", [](const PyExport& self) { return self.summary.history_id; })
      .def_prop_ro("extents", [](const PyExport& self) { return self.extents; });
}

}  // namespace

void BindTransfers(nb::module_& module, nb::class_<PyClient>& client) {
  BindExtent(module);
  client
      .def("import_tensors", &ImportTensors, nb::arg("model"), nb::arg("tensors"), nb::kw_only(),
           nb::arg("commit_number") = nb::none(), nb::arg("version") = nb::none(), nb::arg("history_id") = nb::none(),
           nb::arg("run") = "",
           "Replaces tensors of a model without attached trainers: all of them or, on an error, none. `tensors` is a "
           "dict of masters by parameter, or a sequence of ImportTensor. Arrays are in host memory, of float32, "
           "bfloat16 or float16; others than contiguous ones are copied. Every daemon of several imports the same. "
           "FailedPreconditionError while a trainer is attached; NotFoundError and InvalidArgumentError for tensors "
           "that the model does not have.")
      .def("export_tensors", &ExportTensors, nb::arg("model"), nb::kw_only(),
           nb::arg("parameters") = std::vector<std::string>(), nb::arg("kinds") = std::vector<std::string>{"master"},
           nb::arg("version") = nb::none(),
           "Reads the rows that this daemon owns of tensors of one state. `parameters` empty: all. `kinds`: master, "
           "exp_avg, exp_avg_sq, or as they are stored: master_elements, master_remainders, exp_avg_elements, "
           "exp_avg_scales, exp_avg_sq_elements, exp_avg_sq_scales. exp_avg is an optimizer's first moment, "
           "whatever it calls it. AbortedError if a commit or an import changes the state meanwhile.");
}

}  // namespace paramshard::python
