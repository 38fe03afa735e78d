// Differences are reported with the names of units and parameters and with whole values. MessageDifferencer reports
// indices and single elements instead, so it is used only for fields that are not described here.
#include "common/model/model_spec_difference.h"

// Inlined in this file alone, so the library has no link dependency on xxHash.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/model/model_spec_proto.h"
#include "common/model/names.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/util/message_differencer.h"
#include "kernels/formats/format.h"
#include "kernels/optim/moment.h"
#include "kernels/optim/optimizers.h"

namespace paramshard {
namespace {

// A part of a spec as text. Differences are reported in the order of the fields.
struct Field {
  std::string name;
  std::string value;
};
using Fields = std::vector<Field>;

std::string OnOff(bool value) { return value ? "on" : "off"; }

// Nine digits tell any two floats apart.
std::string Exact(float value) { return absl::StrFormat("%.9g", value); }

std::string KindText(const InitialValue& value) {
  switch (value.kind) {
    case Initializer::kZeros:
      return "constant 0";
    case Initializer::kOnes:
      return "constant 1";
    case Initializer::kConstant:
      return absl::StrCat("constant ", Exact(value.a));
    case Initializer::kNormal:
      return absl::StrCat("normal with mean ", Exact(value.a), " and standard deviation ", Exact(value.b));
    case Initializer::kUniform:
      return absl::StrCat("uniform in [", Exact(value.a), ", ", Exact(value.b), ")");
    case Initializer::kTruncatedNormal:
      return absl::StrCat("normal with mean ", Exact(value.a), " and standard deviation ", Exact(value.b), " in [",
                          Exact(value.low), ", ", Exact(value.high), "]");
  }
  return "unknown";
}

std::string ToText(const InitialValue& value) {
  if (value.zero_begin == value.zero_end) return KindText(value);
  return absl::StrCat(KindText(value), " with elements [", value.zero_begin, ", ", value.zero_end, ") zero");
}

std::string ToText(GradientType type) { return type == GradientType::kFP32 ? "FP32" : "BF16"; }
std::string ToText(MasterType type) { return type == MasterType::kFP32 ? "FP32" : "BF16_REMAINDER"; }

std::string ToText(MomentType type) { return std::string(MomentTypeName(type)); }

std::string ToText(const DelayedScaling::Options& scaling) {
  return absl::StrCat(scaling.algorithm == DelayedScaling::Algorithm::kMax ? "max" : "most recent", " of ",
                      scaling.history_length, " steps with margin ", scaling.margin);
}

std::string ToText(Placement placement) { return placement == Placement::kCut ? "cut" : "owned"; }
std::string ToText(GradientSums sums) { return sums == GradientSums::kAtCommit ? "at commit" : "at push"; }
std::string ToText(Optimizer optimizer) { return TraitsOf(optimizer).name; }
std::string ToText(MuonRate rate) {
  switch (rate) {
    case MuonRate::kOriginal:
      return "original";
    case MuonRate::kMatchRmsAdamW:
      return "match_rms_adamw";
    case MuonRate::kSpectralUnclamped:
      return "spectral_unclamped";
  }
  return "unknown";
}
std::string ToText(const std::vector<NewtonSchulzStep>& steps) {
  return absl::StrJoin(steps, " ", [](std::string* text, const NewtonSchulzStep& step) {
    absl::StrAppend(text, "(", Exact(step.a), ", ", Exact(step.b), ", ", Exact(step.c), ")");
  });
}

std::string ToText(absl::string_view text) { return std::string(text); }

std::string MasterText(const ParameterSpec& spec) {
  if (!spec.trainable && !spec.master_type.has_value()) return "none";
  return ToText(spec.master_type.value_or(MasterType::kFP32));
}

Fields Describe(const ParameterSpec& spec) {
  const Encoding encoding = EncodingOf(spec.encoding);
  Fields fields = {{"shape", absl::StrCat("[", absl::StrJoin(spec.shape, ", "), "]")},
                   {"format", ToText(FormatName(encoding.format))},
                   {"element", ToText(ElementTypeName(encoding.element))},
                   {"power_of_two_scales", OnOff(encoding.power_of_two_scales)},
                   {"delayed_scaling", ToText(spec.encoding.delayed_scaling.value_or(DelayedScaling::Options()))},
                   {"gradient type", ToText(spec.gradient_type)},
                   {"trainable", OnOff(spec.trainable)},
                   {"transposed", OnOff(spec.transposed)},
                   {"split_rows", absl::StrCat("[", absl::StrJoin(spec.split_rows, ", "), "]")},
                   {"master type", MasterText(spec)},
                   {"group", absl::StrCat(spec.group)},
                   {"placement", ToText(spec.placement)},
                   {"initial value", ToText(spec.initial_value)}};
  for (const MomentTraits& moment : kMomentKinds) {
    fields.push_back(
        {absl::StrCat(moment.name, " type"), ToText(MomentTypeOf(spec, moment.kind).value_or(MomentType::kFP32))});
  }
  return fields;
}

Fields Describe(const UnitSpec& spec) { return {{"reshard_after_forward", OnOff(spec.reshard_after_forward)}}; }

Fields Describe(const ParameterGroup& group) {
  return {{"name", DisplayName(group.name)},
          {"optimizer", ToText(group.optimizer)},
          {"bias_correction", OnOff(group.bias_correction)},
          {"Muon's rate", ToText(group.muon.rate)},
          {"Newton-Schulz steps", ToText(group.muon.steps)}};
}

Fields Describe(const ModelSpec& spec) {
  return {{"name", DisplayName(spec.name)},
          {"shard_size", spec.shard_size.has_value() ? absl::StrCat(*spec.shard_size) : "unset"},
          {"small_parameter_bytes", absl::StrCat(spec.small_parameter_bytes)},
          {"gather_slots", absl::StrCat(spec.gather_slots)},
          {"large_gather_slots", absl::StrCat(spec.large_gather_slots)},
          {"gradient_slots", absl::StrCat(spec.gradient_slots)},
          {"gradient_reduction", spec.gradient_reduction == GradientReduction::kMean ? "mean" : "sum"},
          {"seed", absl::StrCat(spec.seed)},
          {"step_timeout", spec.step_timeout.has_value() ? absl::FormatDuration(*spec.step_timeout) : "unset"},
          {"gradient_sums", spec.gradient_sums.has_value() ? ToText(*spec.gradient_sums) : "unset"},
          {"accumulator_type", ToText(spec.accumulator_type)},
          {"pushes_per_step", spec.pushes_per_step.has_value() ? absl::StrCat(*spec.pushes_per_step) : "unset"}};
}

std::string Say(absl::string_view object, absl::string_view field, absl::string_view expected, absl::string_view got) {
  return absl::StrCat(object, ": want ", field, " ", expected, ", got ", got);
}

template <typename T>
std::string FieldDifference(absl::string_view object, const T& expected, const T& got) {
  const Fields a = Describe(expected);
  const Fields b = Describe(got);
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].value != b[i].value) return Say(object, a[i].name, a[i].value, b[i].value);
  }
  return "";
}

std::string CountDifference(absl::string_view object, absl::string_view things, size_t expected, size_t got) {
  return expected == got ? "" : Say(object, things, absl::StrCat(expected), absl::StrCat(got));
}

std::string Difference(const UnitSpec& expected, const UnitSpec& got);

std::string Difference(const ParameterSpec& expected, const ParameterSpec& got) {
  return FieldDifference(absl::StrCat("parameter ", DisplayName(expected.name)), expected, got);
}

// Compares the elements that both lists have, then their lengths.
template <typename T>
std::string ListDifference(absl::string_view object, absl::string_view things, const std::vector<T>& expected,
                           const std::vector<T>& got) {
  for (size_t i = 0; i < std::min(expected.size(), got.size()); ++i) {
    if (expected[i].name != got[i].name) {
      return Say(object, absl::StrCat(things, " ", i), DisplayName(expected[i].name), DisplayName(got[i].name));
    }
    if (std::string found = Difference(expected[i], got[i]); !found.empty()) return found;
  }
  return CountDifference(object, absl::StrCat("number of ", things, "s"), expected.size(), got.size());
}

std::string Difference(const UnitSpec& expected, const UnitSpec& got) {
  const std::string object = absl::StrCat("unit ", DisplayName(expected.name));
  std::string found = FieldDifference(object, expected, got);
  return found.empty() ? ListDifference(object, "parameter", expected.parameters, got.parameters) : found;
}

std::string GroupDifference(const ModelSpec& expected, const ModelSpec& got) {
  for (size_t i = 0; i < std::min(expected.groups.size(), got.groups.size()); ++i) {
    std::string found = FieldDifference(absl::StrCat("group ", i), expected.groups[i], got.groups[i]);
    if (!found.empty()) return found;
  }
  return CountDifference(absl::StrCat("model ", DisplayName(expected.name)), "number of groups", expected.groups.size(),
                         got.groups.size());
}

// Returns the difference in a field that no Describe() above covers.
std::string OtherDifference(absl::string_view object, const ModelSpec& expected, const ModelSpec& got) {
  std::string report;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&report);
  if (differencer.Compare(ModelSpecToProto(expected), ModelSpecToProto(got))) return "";
  return absl::StrCat(object, ": ", report.substr(0, report.find('\n')));
}

std::string SerializeDeterministically(const v1::ModelSpec& proto) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  proto.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

}  // namespace

std::string CanonicalBytes(const ModelSpec& spec) { return SerializeDeterministically(ModelSpecToProto(spec)); }

uint64_t ModelSpecFingerprint(const ModelSpec& spec) {
  const std::string bytes = CanonicalBytes(spec);
  return XXH3_64bits(bytes.data(), bytes.size());
}

ModelSpec WithoutInitialValues(ModelSpec spec) {
  spec.seed = 0;
  for (UnitSpec& unit : spec.units) {
    for (ParameterSpec& parameter : unit.parameters) parameter.initial_value = {};
  }
  return spec;
}

std::string FirstDifference(const ModelSpec& expected, const ModelSpec& got) {
  const std::string object = absl::StrCat("model ", DisplayName(expected.name));
  std::string found = FieldDifference(object, expected, got);
  if (found.empty()) found = GroupDifference(expected, got);
  if (found.empty()) found = ListDifference(object, "unit", expected.units, got.units);
  return found.empty() ? OtherDifference(object, expected, got) : found;
}

}  // namespace paramshard
