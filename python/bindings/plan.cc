#include "python/bindings/plan.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <optional>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/formats/format.h"
#include "python/bindings/arrays.h"
#include "python/bindings/attributes.h"
#include "python/bindings/calls.h"
#include "python/bindings/types.h"

namespace paramshard::python {
namespace {

namespace nb = nanobind;
using nb::dlpack::dtype;

template <typename... Text>
[[noreturn]] void Refuse(const Text&... text) {
  Raise(absl::InvalidArgumentError(absl::StrCat(text...)));
}

std::string PlaceName(const WritableAnywhere& array) {
  return GpuOf(array) < 0 ? "the host" : absl::StrCat("cuda:", GpuOf(array));
}

struct NamedContent {
  absl::string_view name;
  BoxContent content;
};
constexpr NamedContent kNamedContents[] = {{"float32", BoxContent::kFloat32}, {"bfloat16", BoxContent::kBFloat16},
                                           {"float16", BoxContent::kFloat16}, {"codes", BoxContent::kCodes},
                                           {"scales", BoxContent::kScales},   {"amax", BoxContent::kAmax}};

nb::dict MappingOf(nb::handle outputs, const std::string& wanted) {
  if (!nb::hasattr(outputs, "keys")) RaiseType(wanted, outputs);
  const nb::handle dict(reinterpret_cast<PyObject*>(&PyDict_Type));
  return nb::cast<nb::dict>(dict(outputs));
}

// Returns the GPU of all memory, or -1: the host.
int GpuOfAll(const PyPlan::Arrays& arrays) {
  for (const WritableAnywhere& array : arrays) {
    if (GpuOf(array) != GpuOf(arrays[0])) {
      Refuse("plan: want all memory in one place, got some of ", PlaceName(arrays[0]), " and some of ",
             PlaceName(array), ": make a plan for each");
    }
  }
  return arrays.empty() ? -1 : GpuOf(arrays[0]);
}

// --- Whole parameters

// Arrays of any type that have as many bytes.
WritableContiguous ArrayOfBytes(absl::string_view what, absl::string_view part, nb::handle object, int64_t bytes) {
  Check(CheckHoldsItsValues(what, object));
  WritableContiguous array;
  // A conversion would be a copy, which nobody has.
  if (nb::try_cast(object, array, /*convert=*/false) && static_cast<int64_t>(array.nbytes()) == bytes &&
      IsOfHostOrGpu(nb::ndarray<nb::ro>(array))) {
    return array;
  }
  Refuse(what, ": want ", bytes, " bytes of ", part, " in a writable, C-contiguous array, got ", Described(object));
}

// Boxes whose memory is a whole array.
struct Destinations {
  std::vector<Box> boxes;
  PyPlan::Arrays arrays;

  void Add(const ReadParameter& parameter, BoxContent content, const WritableContiguous& array) {
    boxes.push_back({.parameter = parameter.name, .content = content, .out = array.data()});
    arrays.emplace_back(array);
  }
};

void AddDecoded(absl::string_view what, const ReadParameter& parameter, nb::handle value, Destinations& all) {
  const WritableContiguous array =
      DecodedArray(what, value, {.rows = parameter.rows, .columns = parameter.columns, .parameter = parameter.shape});
  all.Add(parameter, array.dtype() == nb::dtype<float>() ? BoxContent::kFloat32 : BoxContent::kBFloat16, array);
}

void AddEncoded(absl::string_view what, const ReadParameter& parameter, nb::handle value, Destinations& all) {
  const Encoding& encoding = parameter.encoding;
  const int64_t code_bytes = DataBytes(encoding, parameter.rows, parameter.columns);
  const int64_t scale_bytes = ScaleBytes(encoding, Plane::kRowWise, parameter.rows, parameter.columns);
  if (scale_bytes == 0) {
    all.Add(parameter, BoxContent::kCodes, ArrayOfBytes(what, "codes", value, code_bytes));
    return;
  }
  if (!nb::isinstance<nb::tuple>(value) || nb::len(value) != 2) {
    RaiseType(absl::StrCat(what, ": want a tuple of codes and scales"), value);
  }
  all.Add(parameter, BoxContent::kCodes, ArrayOfBytes(what, "codes", value[0], code_bytes));
  all.Add(parameter, BoxContent::kScales, ArrayOfBytes(what, "scales", value[1], scale_bytes));
}

// --- Views

// One output of a view, and its parts among the boxes of all.
struct ViewOutput {
  std::string name = {};
  dtype type = {};
  WritableRows rows = {};
  size_t first_box = 0;
  size_t box_count = 0;
};

template <typename T>
T Attribute(nb::handle object, const char* name, absl::string_view wanted) {
  if (!nb::hasattr(object, name)) RaiseType(wanted, object);
  return As<T>(object.attr(name), wanted);
}

BoxContent ContentOf(const ViewOutput& output, const std::string& what) {
  const std::optional<BoxContent> content = ContentNamed(what == "decoded" ? TypeName(output.type) : what);
  if (content.has_value() && (what == "decoded") == IsDecoded(*content)) return *content;
  if (what == "decoded") {
    Refuse("plan: output ", output.name, ": want float32, bfloat16 or float16 for decoded values, got ",
           TypeName(output.type));
  }
  Refuse("plan: output ", output.name, ": want decoded, codes, scales or amax of a parameter, got ", what);
}

Box BoxOf(const ViewOutput& output, nb::handle part) {
  const std::string wanted = absl::StrCat("plan: output ", output.name, ": want a paramshard.Part");
  using Range = std::pair<int64_t, int64_t>;
  Box box{.parameter = Attribute<std::string>(part, "parameter", wanted)};
  const auto range = [&](const char* name, int64_t& first, std::optional<int64_t>& count) {
    const nb::object value = Attribute<nb::object>(part, name, wanted);
    if (value.is_none()) return;
    const auto [begin, end] =
        As<Range>(value, absl::StrCat("plan: output ", output.name, ": ", name, ": want (begin, end) or None"));
    first = begin;
    count = end - begin;
  };
  range("rows", box.first_row, box.rows);
  range("columns", box.first_column, box.columns);
  box.content = ContentOf(output, Attribute<std::string>(part, "what", wanted));
  return box;
}

// Stored bytes go to arrays of their own type, and to bytes.
void CheckType(const ViewOutput& output, const Encoding& encoding, BoxContent content) {
  if (IsDecoded(content) || output.type == *TypeNamed("uint8")) return;
  const bool is_code = content == BoxContent::kCodes;
  const dtype type = is_code                          ? TypeOf(encoding)
                     : content == BoxContent::kScales ? TypeOf(TraitsOf(encoding.format).scale_type)
                                                      : *TypeNamed("float32");
  if (output.type == type) return;
  Refuse("plan: output ", output.name, ": want uint8 or ", TypeName(type), " for ", is_code ? "codes" : "scales",
         " of ", FormatName(encoding.format), ", got ", TypeName(output.type));
}

// Gives an output's memory to its parts, from top to bottom.
void Place(const ViewOutput& output, std::vector<Box>& boxes, const std::vector<BoxOutput>& parts) {
  const WritableRows& rows = output.rows;
  auto* const memory = static_cast<uint8_t*>(rows.array.data());
  // Parts of a vector follow each other. An output without elements has parts without bytes, of any number of rows.
  const bool is_vector = rows.array.ndim() < 2 || rows.array.size() == 0;
  const auto element_bytes = static_cast<int64_t>(rows.array.itemsize());
  int64_t filled = 0;  // rows; bytes of a vector
  for (size_t i = output.first_box; i < output.first_box + output.box_count; ++i) {
    const BoxOutput& part = parts[i];
    if (is_vector) {
      boxes[i].out = memory + filled;
      filled += part.rows * part.row_bytes;
      continue;
    }
    if (part.row_bytes != rows.row_bytes && part.rows > 0) {
      Refuse("plan: output ", output.name, ": want parts of ", rows.row_bytes / element_bytes, " columns, got ",
             part.row_bytes / element_bytes, " of ", boxes[i].parameter);
    }
    boxes[i].out = memory + filled * rows.stride_bytes;
    boxes[i].out_stride_bytes = rows.stride_bytes;
    filled += part.rows;
  }
  const int64_t unit = is_vector ? element_bytes : 1;
  const int64_t wanted = is_vector ? rows.rows * rows.row_bytes : rows.rows;
  if (filled == wanted) return;
  Refuse("plan: output ", output.name, ": want parts of ", wanted / unit, is_vector ? " elements" : " rows",
         " together, got ", filled / unit);
}

void MakePlan(PyPlan* self, Argument<named::Any> view, Argument<named::Outputs> outputs) {
  const std::string wanted = "plan: want a paramshard.View";
  const auto parameters = Attribute<std::vector<ReadParameter>>(view, "parameters", wanted);
  std::map<absl::string_view, const ReadParameter*> by_name;
  for (const ReadParameter& parameter : parameters) by_name.emplace(parameter.name, &parameter);
  nb::dict arrays = MappingOf(outputs, "plan: want a mapping of outputs' names to arrays");
  std::vector<ViewOutput> all;
  std::set<std::string> names;
  std::vector<Box> boxes;
  TensorStorages storages;
  for (const nb::handle each : Attribute<nb::iterable>(view, "outputs", wanted)) {
    const std::string wanted_output = "plan: want a view of paramshard.Output";
    ViewOutput output{.name = Attribute<std::string>(each, "name", wanted_output), .first_box = boxes.size()};
    const auto type = Attribute<std::string>(each, "dtype", wanted_output);
    const std::optional<dtype> known = TypeNamed(type);
    if (!known.has_value()) Refuse("plan: output ", output.name, ": unknown dtype ", type);
    output.type = *known;
    for (const nb::handle part : Attribute<nb::iterable>(each, "parts", wanted_output)) {
      boxes.push_back(BoxOf(output, part));
      ++output.box_count;
    }
    if (!names.insert(output.name).second) Refuse("plan: the view has two outputs ", output.name);
    if (!arrays.contains(output.name.c_str())) Refuse("plan: output ", output.name, ": want an array for it");
    const std::string what = absl::StrCat("plan: output ", output.name);
    output.rows = RowsArray(what, arrays[output.name.c_str()], output.type,
                            Attribute<std::vector<int64_t>>(each, "shape", wanted_output));
    storages.Add(output.name, arrays[output.name.c_str()]);
    nb::del(arrays[output.name.c_str()]);
    all.push_back(std::move(output));
  }
  for (const auto& [name, array] : arrays) Refuse("plan: the view has no output ", nb::str(name).c_str());
  const std::vector<BoxOutput> parts = Take(Plan::OutputsOf(parameters, boxes));
  PyPlan::Arrays kept;
  for (const ViewOutput& output : all) {
    for (size_t i = output.first_box; i < output.first_box + output.box_count; ++i) {
      CheckType(output, by_name.at(boxes[i].parameter)->encoding, boxes[i].content);
    }
    Place(output, boxes, parts);
    kept.push_back(output.rows.array);
  }
  Plan plan = Take(Plan::Create(parameters, std::move(boxes), GpuOfAll(kept)));
  new (self) PyPlan(std::move(plan), std::move(kept), std::move(storages));
}

}  // namespace

TensorStorages::Place TensorStorages::PlaceOf(nb::handle storage) {
  static const Name data_ptr("data_ptr"), nbytes("nbytes");
  return {.address = nb::cast<uintptr_t>(CallMethod(storage, data_ptr)),
          .bytes = nb::cast<uint64_t>(CallMethod(storage, nbytes))};
}

void TensorStorages::Add(absl::string_view name, nb::handle array) {
  if (!nb::hasattr(array, "untyped_storage")) return;
  nb::object storage = array.attr("untyped_storage")();
  if (!all_.empty() && all_.back().storage.is(storage)) return;
  const Place place = PlaceOf(storage);
  all_.push_back({.name = std::string(name), .storage = std::move(storage), .place = place});
}

absl::Status TensorStorages::CheckPresent() const {
  for (const Storage& each : all_) {
    if (PlaceOf(each.storage) == each.place) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "output ", each.name, ": the tensor's storage was resized after the plan was made: make another plan"));
  }
  return absl::OkStatus();
}

std::optional<BoxContent> ContentNamed(absl::string_view name) {
  for (const NamedContent& each : kNamedContents) {
    if (each.name == name) return each.content;
  }
  return std::nullopt;
}

PyPlan PlanOfParameters(absl::string_view call, absl::FunctionRef<const ReadParameter&(const std::string&)> find,
                        nb::handle outputs, bool decoded) {
  const std::string wanted = absl::StrCat(call, ": want a mapping of parameters' names to arrays");
  std::vector<ReadParameter> parameters;
  Destinations all;
  for (const auto& [key, value] : MappingOf(outputs, wanted)) {
    const auto name = As<std::string>(key, wanted);
    parameters.push_back(find(name));
    (decoded ? AddDecoded : AddEncoded)(absl::StrCat(call, " ", name), parameters.back(), value, all);
  }
  absl::StatusOr<Plan> plan = Plan::Create(parameters, std::move(all.boxes), GpuOfAll(all.arrays));
  if (plan.ok()) return PyPlan(*std::move(plan), std::move(all.arrays));
  Raise(absl::Status(plan.status().code(), absl::StrCat(call, absl::StripPrefix(plan.status().message(), "plan"))));
}

void BindPlan(nb::module_& module) {
  nb::class_<PyPlan>(module, "Plan",
                     "Where the outputs of a view go: checked once, and copied from any snapshot of the model by "
                     "`Snapshot.copy_into`, also after a restart of the daemon. It keeps the arrays, and writes to the "
                     "memory that they have now; copies raise FailedPreconditionError if the storage of a tensor of "
                     "torch was resized. Immutable.")
      .def(
          "__init__", &MakePlan, nb::arg("view").none(), nb::arg("outputs").none(),
          "`view` is a paramshard.View. `outputs` maps the name of each output to a writable array, all in host memory "
          "or all of one GPU, with DLPack or the buffer protocol, of its shape and dtype, or of unsigned integers for "
          "bit patterns; rows "
          "may lie apart. NotFoundError for a parameter that the model does not have, with similar names; "
          "InvalidArgumentError for rows and columns that are not there, codes and scales of a part of a block, parts "
          "that do not fill an output, arrays of another shape or dtype, and memory that two parts would write.")
      .def("__repr__", [](const PyPlan& self) {
        return absl::StrCat("<paramshard.Plan of ", self.plan().boxes().size(), " parts>");
      });
}

}  // namespace paramshard::python
