#include "python/bindings/spec.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "python/bindings/calls.h"
#include "python/bindings/names.h"

namespace paramshard::python {
namespace {

namespace nb = nanobind;

// --- From Python

// A dataclass, whose fields are read by their names.
class Fields {
 public:
  explicit Fields(nb::handle object) : object_(object) {}

  nb::object Get(const char* name) const { return object_.attr(name); }

  // Reads a number, a text or a bool.
  template <typename T>
  void Read(const char* name, T& value) const {
    if (!nb::try_cast(Get(name), value)) Refuse(name);
  }
  void ReadSeconds(const char* name, std::optional<absl::Duration>& value) const {
    std::optional<double> seconds;
    Read(name, seconds);
    if (seconds.has_value()) value = absl::Seconds(*seconds);
  }

  // Reads a value of an enumeration by its name.
  template <typename T>
  void ReadName(const char* name, T& value) const {
    std::string text;
    Read(name, text);
    value = Take(Parse<T>(Path(name), text));
  }
  template <typename T>
  void ReadName(const char* name, std::optional<T>& value) const {
    if (!Get(name).is_none()) ReadName(name, value.emplace());
  }

  // Reads a list of dataclasses, each by `convert`.
  template <typename T>
  void ReadList(const char* name, std::vector<T>& values, T (*convert)(const Fields&)) const {
    const nb::object list = Get(name);
    if (PySequence_Check(list.ptr()) == 0) Refuse(name);
    for (const nb::handle element : list) values.push_back(convert(Fields(element)));
  }

 private:
  std::string Path(const char* name) const {
    return absl::StrCat(nb::cast<std::string>(object_.type().attr("__name__")), ".", name);
  }
  [[noreturn]] void Refuse(const char* name) const {
    const std::string text = absl::StrCat(Path(name), ": want a value of its type, got ", nb::repr(Get(name)).c_str());
    throw nb::type_error(text.c_str());
  }

  nb::handle object_;
};

DelayedScaling::Options ScalingOf(const Fields& fields) {
  DelayedScaling::Options options;
  fields.ReadName("algorithm", options.algorithm);
  fields.Read("history_length", options.history_length);
  fields.Read("margin", options.margin);
  return options;
}

EncodingSpec EncodingOf(const Fields& fields) {
  EncodingSpec encoding;
  fields.ReadName("format", encoding.format);
  fields.ReadName("element", encoding.element);
  fields.Read("power_of_two_scales", encoding.power_of_two_scales);
  const nb::object scaling = fields.Get("delayed_scaling");
  if (!scaling.is_none()) encoding.delayed_scaling = ScalingOf(Fields(scaling));
  return encoding;
}

// Reads the fields that parameters and rules have in common.
template <typename Spec>
void ReadStorage(const Fields& fields, Spec& spec) {
  spec.encoding = EncodingOf(Fields(fields.Get("encoding")));
  fields.ReadName("exp_avg_type", spec.exp_avg_type);
  fields.ReadName("exp_avg_sq_type", spec.exp_avg_sq_type);
  fields.ReadName("master_type", spec.master_type);
}

InitialValue InitialValueOf(const Fields& fields) {
  InitialValue value;
  fields.ReadName("kind", value.kind);
  fields.Read("a", value.a);
  fields.Read("b", value.b);
  fields.Read("low", value.low);
  fields.Read("high", value.high);
  fields.Read("zero_begin", value.zero_begin);
  fields.Read("zero_end", value.zero_end);
  return value;
}

ParameterSpec ParameterOf(const Fields& fields) {
  ParameterSpec parameter;
  fields.Read("name", parameter.name);
  fields.Read("shape", parameter.shape);
  ReadStorage(fields, parameter);
  fields.ReadName("gradient_type", parameter.gradient_type);
  fields.Read("group", parameter.group);
  parameter.initial_value = InitialValueOf(Fields(fields.Get("initial_value")));
  fields.ReadName("placement", parameter.placement);
  fields.Read("trainable", parameter.trainable);
  fields.Read("transposed", parameter.transposed);
  fields.Read("split_rows", parameter.split_rows);
  return parameter;
}

UnitSpec UnitOf(const Fields& fields) {
  UnitSpec unit;
  fields.Read("name", unit.name);
  fields.ReadList("parameters", unit.parameters, &ParameterOf);
  fields.Read("reshard_after_forward", unit.reshard_after_forward);
  return unit;
}

MuonOptions MuonOf(const Fields& fields) {
  MuonOptions options;
  fields.ReadName("rate", options.rate);
  std::vector<std::tuple<float, float, float>> steps;
  fields.Read("steps", steps);
  options.steps.clear();
  for (const auto& [a, b, c] : steps) options.steps.push_back({a, b, c});
  return options;
}

ParameterGroup GroupOf(const Fields& fields) {
  ParameterGroup group;
  fields.Read("name", group.name);
  fields.ReadName("optimizer", group.optimizer);
  fields.Read("bias_correction", group.bias_correction);
  group.muon = MuonOf(Fields(fields.Get("muon")));
  return group;
}

FormatRule RuleOf(const Fields& fields) {
  FormatRule rule;
  fields.Read("pattern", rule.pattern);
  ReadStorage(fields, rule);
  return rule;
}

// --- To Python

nb::object ToPython(const ParameterSpec& parameter);
nb::object ToPython(const UnitSpec& unit);
nb::object ToPython(const ParameterGroup& group);

template <typename T>
nb::list ListOf(const std::vector<T>& values) {
  nb::list list;
  for (const T& value : values) list.append(ToPython(value));
  return list;
}

nb::object New(const char* type, const nb::kwargs& fields) {
  return nb::module_::import_("paramshard.spec").attr(type)(**fields);
}

template <typename T>
nb::object NameObject(const std::optional<T>& value) {
  if (!value.has_value()) return nb::none();
  return nb::str(NameOf(*value));
}

nb::object ToPython(const DelayedScaling::Options& options) {
  nb::kwargs fields;
  fields["algorithm"] = NameOf(options.algorithm);
  fields["history_length"] = options.history_length;
  fields["margin"] = options.margin;
  return New("DelayedScaling", fields);
}

nb::object ToPython(const EncodingSpec& encoding) {
  nb::kwargs fields;
  fields["format"] = NameObject(encoding.format);
  const bool has_element = encoding.element.has_value() && *encoding.element != ElementType::kNone;
  fields["element"] = NameObject(has_element ? encoding.element : std::nullopt);
  fields["power_of_two_scales"] = encoding.power_of_two_scales;
  if (encoding.delayed_scaling.has_value()) fields["delayed_scaling"] = ToPython(*encoding.delayed_scaling);
  return New("Encoding", fields);
}

nb::object ToPython(const InitialValue& value) {
  nb::kwargs fields;
  fields["kind"] = NameOf(value.kind);
  fields["a"] = value.a;
  fields["b"] = value.b;
  fields["low"] = value.low;
  fields["high"] = value.high;
  fields["zero_begin"] = value.zero_begin;
  fields["zero_end"] = value.zero_end;
  return New("InitialValue", fields);
}

nb::object ToPython(const ParameterSpec& parameter) {
  nb::kwargs fields;
  fields["name"] = parameter.name;
  fields["shape"] = parameter.shape;
  fields["encoding"] = ToPython(parameter.encoding);
  fields["gradient_type"] = NameOf(parameter.gradient_type);
  fields["exp_avg_type"] = NameObject(parameter.exp_avg_type);
  fields["exp_avg_sq_type"] = NameObject(parameter.exp_avg_sq_type);
  fields["master_type"] = NameObject(parameter.master_type);
  fields["group"] = parameter.group;
  fields["initial_value"] = ToPython(parameter.initial_value);
  fields["placement"] = NameOf(parameter.placement);
  fields["trainable"] = parameter.trainable;
  fields["transposed"] = parameter.transposed;
  fields["split_rows"] = parameter.split_rows;
  return New("ParameterSpec", fields);
}

nb::object ToPython(const UnitSpec& unit) {
  nb::kwargs fields;
  fields["name"] = unit.name;
  fields["parameters"] = ListOf(unit.parameters);
  fields["reshard_after_forward"] = unit.reshard_after_forward;
  return New("UnitSpec", fields);
}

nb::object ToPython(const MuonOptions& options) {
  nb::kwargs fields;
  fields["rate"] = NameOf(options.rate);
  nb::list steps;
  for (const NewtonSchulzStep& step : options.steps) steps.append(nb::make_tuple(step.a, step.b, step.c));
  fields["steps"] = steps;
  return New("MuonOptions", fields);
}

nb::object ToPython(const ParameterGroup& group) {
  nb::kwargs fields;
  fields["name"] = group.name;
  fields["optimizer"] = NameOf(group.optimizer);
  fields["bias_correction"] = group.bias_correction;
  fields["muon"] = ToPython(group.muon);
  return New("ParameterGroup", fields);
}

}  // namespace

ModelSpec SpecFromPython(nb::handle object) {
  const Fields fields(object);
  ModelSpec spec;
  fields.Read("name", spec.name);
  fields.ReadList("units", spec.units, &UnitOf);
  fields.ReadList("groups", spec.groups, &GroupOf);
  fields.Read("shard_size", spec.shard_size);
  fields.Read("small_parameter_bytes", spec.small_parameter_bytes);
  fields.Read("gather_slots", spec.gather_slots);
  fields.Read("large_gather_slots", spec.large_gather_slots);
  fields.Read("gradient_slots", spec.gradient_slots);
  fields.ReadName("gradient_reduction", spec.gradient_reduction);
  fields.Read("seed", spec.seed);
  fields.ReadSeconds("step_timeout", spec.step_timeout);
  fields.ReadList("format_rules", spec.format_rules, &RuleOf);
  fields.ReadName("gradient_sums", spec.gradient_sums);
  fields.ReadName("accumulator_type", spec.accumulator_type);
  fields.Read("pushes_per_step", spec.pushes_per_step);
  return spec;
}

nb::object SpecToPython(const ModelSpec& spec) {
  nb::kwargs fields;
  fields["name"] = spec.name;
  fields["units"] = ListOf(spec.units);
  fields["groups"] = ListOf(spec.groups);
  fields["shard_size"] = spec.shard_size;
  fields["small_parameter_bytes"] = spec.small_parameter_bytes;
  fields["gather_slots"] = spec.gather_slots;
  fields["large_gather_slots"] = spec.large_gather_slots;
  fields["gradient_slots"] = spec.gradient_slots;
  fields["gradient_reduction"] = NameOf(spec.gradient_reduction);
  fields["seed"] = spec.seed;
  if (spec.step_timeout.has_value()) fields["step_timeout"] = absl::ToDoubleSeconds(*spec.step_timeout);
  fields["gradient_sums"] = NameObject(spec.gradient_sums);
  fields["accumulator_type"] = NameOf(spec.accumulator_type);
  fields["pushes_per_step"] = spec.pushes_per_step;
  return New("ModelSpec", fields);
}

}  // namespace paramshard::python
