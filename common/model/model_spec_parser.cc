// Parser from a message to the checked spec.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/model/format_rules.h"
#include "common/model/limits.h"
#include "common/model/model_spec_proto.h"
#include "common/model/moment_fields.h"
#include "common/model/muon_matrices.h"
#include "common/model/names.h"
#include "common/model/owned_matrices.h"
#include "common/model/plane_bytes.h"
#include "common/rpc/durations.h"
#include "kernels/base/status_macros.h"
#include "kernels/optim/moment.h"
#include "kernels/optim/optimizers.h"

namespace paramshard {
namespace {

constexpr int kMaxRank = 8;
constexpr int kMaxSlots = 64;
// Largest upper bound of the bytes that a model takes on a rank, computed in double. A single
// parameter stays below it.
constexpr double kMaxTotalBytes = 0x1.fp62;

absl::Status Unexpected(absl::string_view expected, const absl::AlphaNum& got) {
  return absl::InvalidArgumentError(absl::StrCat("want ", expected, ", got ", got));
}

// Returns the same error with the object in front.
absl::Status Annotate(const absl::Status& status, absl::string_view object) {
  return absl::Status(status.code(), absl::StrCat(object, ": ", status.message()));
}

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t low, int64_t high) {
  if (low <= value && value <= high) return absl::OkStatus();
  return Unexpected(absl::StrCat(field, " in [", low, ", ", high, "]"), value);
}

// Enums of the proto and of the kernels share their numbers; 0 is the proto's "unspecified".
template <typename Enum>
absl::StatusOr<Enum> ParseEnum(int number, Enum unspecified, Enum last, absl::string_view expected) {
  if (number == 0) return unspecified;
  if (number < 0 || number > static_cast<int>(last)) return Unexpected(expected, number);
  return static_cast<Enum>(number);
}
static_assert(std::size(kFormats) == v1::Format_MAX);
static_assert(static_cast<int>(ElementType::kE2M1) == v1::ELEMENT_E2M1);
static_assert(static_cast<int>(GradientType::kBF16) == v1::GRADIENT_TYPE_BF16);
static_assert(std::size(kMomentTypes) == v1::MomentType_MAX);
static_assert(static_cast<int>(MasterType::kBF16Remainder) == v1::MASTER_TYPE_BF16_REMAINDER);
static_assert(static_cast<int>(DelayedScaling::Algorithm::kMostRecent) == v1::AMAX_ALGORITHM_MOST_RECENT);
static_assert(kOptimizerCount == v1::Optimizer_MAX);
static_assert(static_cast<int>(MuonRate::kSpectralUnclamped) == v1::MuonRate_MAX);
static_assert(static_cast<int>(GradientReduction::kSum) == v1::GRADIENT_REDUCTION_SUM);
static_assert(static_cast<int>(GradientSums::kAtPush) == v1::GRADIENT_SUMS_AT_PUSH);
static_assert(static_cast<int>(Placement::kOwned) == v1::Placement_MAX);

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("shape [", absl::StrJoin(shape, ", "), "]");
}

absl::Status ParseShape(const v1::ParameterSpec& proto, ParameterSpec& spec) {
  if (proto.shape_size() > kMaxRank) {
    return Unexpected(absl::StrCat("at most ", kMaxRank, " dimensions"), proto.shape_size());
  }
  spec.shape.assign(proto.shape().begin(), proto.shape().end());
  int64_t elements = 1;
  for (const int64_t dimension : spec.shape) {
    if (dimension < 1) return Unexpected("dimensions >= 1", ShapeText(spec.shape));
    if (dimension > (kMaxElements - 1) / elements) {
      return Unexpected("fewer than 2^40 elements", ShapeText(spec.shape));
    }
    elements *= dimension;
  }
  return absl::OkStatus();
}

// Parses a ParameterSpec or a FormatRule: their fields are the same.
template <typename Proto>
absl::StatusOr<Encoding> ParseEncoding(const Proto& proto) {
  if (proto.format() == v1::FORMAT_UNSPECIFIED) return Unexpected("a format", "none");
  Encoding encoding;
  ASSIGN_OR_RETURN(encoding.format,
                   ParseEnum(proto.format(), Format::kFP32, std::rbegin(kFormats)->format, "a format"));
  const ElementType element = DefaultElement(encoding.format);
  ASSIGN_OR_RETURN(encoding.element, ParseEnum(proto.element(), element, ElementType::kE2M1, "an element type"));
  if (TraitsOf(encoding.format).elements == ElementTypes::kAny) encoding.element = element;
  encoding.power_of_two_scales = proto.has_power_of_two_scales() && ReadsPowerOfTwoScales(encoding.format)
                                     ? proto.power_of_two_scales()
                                     : DefaultPowerOfTwoScales(encoding.format);
  if (CheckEncodable(encoding).ok()) return encoding;
  return Unexpected(absl::StrCat("an element type of ", FormatName(encoding.format)),
                    ElementTypeName(encoding.element));
}

absl::StatusOr<DelayedScaling::Options> ParseDelayedScaling(const v1::DelayedScaling& proto) {
  DelayedScaling::Options options;
  ASSIGN_OR_RETURN(options.algorithm,
                   ParseEnum(proto.algorithm(), DelayedScaling::Algorithm::kMax, DelayedScaling::Algorithm::kMostRecent,
                             "an algorithm of delayed scaling"));
  if (proto.has_history_length()) options.history_length = proto.history_length();
  if (proto.has_margin()) options.margin = proto.margin();
  RETURN_IF_ERROR(DelayedScaling::Check(options));
  return options;
}

template <typename Proto>
absl::Status ParseState(const Proto& proto, ParameterSpec& spec) {
  for (const MomentTraits& moment : kMomentKinds) {
    ASSIGN_OR_RETURN(MomentTypeOf(spec, moment.kind),
                     ParseEnum(MomentTypeIn(proto, moment.kind), MomentType::kFP32, *std::rbegin(kMomentTypes),
                               absl::StrCat("a type of ", moment.name)));
  }
  ASSIGN_OR_RETURN(spec.master_type, ParseEnum(proto.master_type(), MasterType::kFP32, MasterType::kBF16Remainder,
                                               "a type of the master"));
  if (spec.master_type == MasterType::kBF16Remainder && spec.encoding.format != Format::kBF16) {
    return Unexpected("format BF16 for a master of BF16_REMAINDER", FormatName(*spec.encoding.format));
  }
  return absl::OkStatus();
}

// Parses all fields that a rule can have.
template <typename Proto>
absl::Status ParseStorage(const Proto& proto, ParameterSpec& spec) {
  ASSIGN_OR_RETURN(const Encoding encoding, ParseEncoding(proto));
  spec.encoding = {
      .format = encoding.format, .element = encoding.element, .power_of_two_scales = encoding.power_of_two_scales};
  // Checked for every format, kept only if the format reads it.
  ASSIGN_OR_RETURN(const DelayedScaling::Options scaling, ParseDelayedScaling(proto.delayed_scaling()));
  if (encoding.format == Format::kFP8TensorDelayed) spec.encoding.delayed_scaling = scaling;
  return ParseState(proto, spec);
}

InitialValue ToKind(const v1::InitialValue& proto) {
  switch (proto.kind_case()) {
    case v1::InitialValue::kConstant: {
      const float value = proto.constant().value();
      if (value == 0 && !std::signbit(value)) return {};
      return {.kind = Initializer::kConstant, .a = value};
    }
    case v1::InitialValue::kNormal:
      return {.kind = Initializer::kNormal, .a = proto.normal().mean(), .b = proto.normal().standard_deviation()};
    case v1::InitialValue::kUniform:
      return {.kind = Initializer::kUniform, .a = proto.uniform().low(), .b = proto.uniform().high()};
    case v1::InitialValue::kTruncatedNormal: {
      const v1::InitialValue::TruncatedNormal& normal = proto.truncated_normal();
      return {.kind = Initializer::kTruncatedNormal,
              .a = normal.mean(),
              .b = normal.standard_deviation(),
              .low = normal.low(),
              .high = normal.high()};
    }
    case v1::InitialValue::KIND_NOT_SET:
      break;
  }
  return {};
}

InitialValue ToInitialValue(const v1::InitialValue& proto) {
  InitialValue value = ToKind(proto);
  if (proto.zero_begin() == proto.zero_end()) return value;
  value.zero_begin = proto.zero_begin();
  value.zero_end = proto.zero_end();
  return value;
}

absl::Status CheckInitial(const InitialValue& value, int64_t elements) {
  if (value.zero_begin < 0 || value.zero_begin > value.zero_end || value.zero_end > elements) {
    return Unexpected(absl::StrCat("0 <= zero_begin <= zero_end <= ", elements, " elements"),
                      absl::StrCat("zero_begin ", value.zero_begin, ", zero_end ", value.zero_end));
  }
  if (CheckInitialValue(value).ok()) return absl::OkStatus();
  switch (value.kind) {
    case Initializer::kNormal:
      return Unexpected("a finite mean and a finite standard deviation >= 0", absl::StrCat(value.a, " and ", value.b));
    case Initializer::kUniform:
      return Unexpected("finite low < high", absl::StrCat("low ", value.a, ", high ", value.b));
    case Initializer::kTruncatedNormal:
      return Unexpected("a finite mean, a finite standard deviation > 0 and finite low < high",
                        absl::StrCat(value.a, ", ", value.b, ", low ", value.low, ", high ", value.high));
    case Initializer::kZeros:
    case Initializer::kOnes:
    case Initializer::kConstant:
      break;
  }
  return Unexpected("a finite constant", value.a);
}

// Keeps the first `count` moments: the moments of the parameter's optimizer.
void KeepMoments(ParameterSpec& spec, int count) {
  for (int i = count; i < kMomentCount; ++i) MomentTypeOf(spec, kMomentKinds[i].kind).reset();
}

// Drops the fields that only steps read, and the master unless it is asked for.
void Freeze(const v1::ParameterSpec& proto, ParameterSpec& spec) {
  spec.trainable = false;
  spec.gradient_type = GradientType::kFP32;
  KeepMoments(spec, 0);
  if (proto.master_type() == v1::MASTER_TYPE_UNSPECIFIED) spec.master_type.reset();
  spec.group = 0;
}

absl::StatusOr<ParameterSpec> ParseParameter(const v1::ParameterSpec& proto,
                                             const std::vector<ParameterGroup>& groups) {
  ParameterSpec spec;
  spec.name = proto.name();
  RETURN_IF_ERROR(ParseShape(proto, spec));
  RETURN_IF_ERROR(ParseStorage(proto, spec));
  ASSIGN_OR_RETURN(spec.gradient_type,
                   ParseEnum(proto.gradient_type(), GradientType::kFP32, GradientType::kBF16, "a gradient type"));
  RETURN_IF_ERROR(CheckRange("a group", proto.group(), 0, static_cast<int>(groups.size()) - 1));
  spec.group = proto.group();
  spec.optimizer = groups[spec.group].optimizer;
  KeepMoments(spec, TraitsOf(spec.optimizer).moment_count);
  if (proto.has_trainable() && !proto.trainable()) Freeze(proto, spec);
  ASSIGN_OR_RETURN(spec.placement,
                   ParseEnum(proto.placement(), Placement::kCut, Placement::kOwned, "placement CUT or OWNED"));
  if (spec.trainable && IsMuon(spec.optimizer)) {
    spec.transposed = proto.transposed();
    spec.split_rows.assign(proto.split_rows().begin(), proto.split_rows().end());
    RETURN_IF_ERROR(CheckMuonParameter(spec, groups[spec.group]));
    if (proto.placement() == v1::PLACEMENT_CUT) {
      return Unexpected("placement OWNED or none, because Muon needs whole matrices", "CUT");
    }
    spec.placement = Placement::kOwned;
  }
  spec.initial_value = ToInitialValue(proto.initial_value());
  RETURN_IF_ERROR(CheckInitial(spec.initial_value, spec.rows() * spec.columns()));
  return spec;
}

absl::StatusOr<MuonOptions> ParseMuon(const v1::MuonOptions& proto) {
  MuonOptions options;
  ASSIGN_OR_RETURN(options.rate, ParseEnum(proto.rate(), MuonRate::kOriginal, MuonRate::kSpectralUnclamped,
                                           "an adjustment of Muon's learning rate"));
  constexpr int kMostSteps = 99;
  RETURN_IF_ERROR(CheckRange("number of Newton-Schulz steps", proto.steps_size(), 0, kMostSteps));
  if (proto.steps().empty()) return options;
  options.steps.clear();
  for (const v1::NewtonSchulzStep& step : proto.steps()) {
    if (!std::isfinite(step.a()) || !std::isfinite(step.b()) || !std::isfinite(step.c())) {
      return Unexpected("finite coefficients of Newton-Schulz steps", "others");
    }
    options.steps.push_back({step.a(), step.b(), step.c()});
  }
  return options;
}

absl::StatusOr<ParameterGroup> ParseGroup(const v1::ParameterGroup& proto) {
  ParameterGroup group;
  // A group is identified by its index; the name is for people and optional.
  if (!proto.name().empty()) RETURN_IF_ERROR(CheckName(proto.name()));
  group.name = proto.name();
  ASSIGN_OR_RETURN(group.optimizer, ParseEnum(proto.optimizer(), Optimizer::kAdamW, std::rbegin(kOptimizers)->optimizer,
                                              "an optimizer"));
  if (proto.has_bias_correction()) group.bias_correction = proto.bias_correction();
  if (IsMuon(group.optimizer)) {
    ASSIGN_OR_RETURN(group.muon, ParseMuon(proto.muon()));
  }
  return group;
}

absl::StatusOr<absl::Duration> ParseTimeout(const google::protobuf::Duration& proto) {
  const bool valid = proto.seconds() >= 0 && proto.nanos() >= 0 && proto.nanos() < 1'000'000'000 &&
                     (proto.seconds() > 0 || proto.nanos() > 0);
  const absl::Duration timeout = DurationFromProto(proto);
  if (valid && timeout <= kMaxStepTimeout) return timeout;
  return Annotate(Unexpected(absl::StrCat("a duration > 0 of at most ", absl::FormatDuration(kMaxStepTimeout)),
                             absl::StrCat(proto.seconds(), " s and ", proto.nanos(), " ns")),
                  "step_timeout");
}

// Returns an upper bound of the bytes that the parameter takes in any arena or slot, for any number
// of ranks. Planes take at most 8 bytes an element, with scales of edge blocks. Extents are equal in
// a slot, which adds less than a granule for each rank, and no rank has more than the whole; a small
// parameter may take its room on every rank.
double MaxSlotBytes(const ParameterSpec& spec, bool small) {
  constexpr double kRanks = kMaxShardSize;
  constexpr double kAlignmentBytes = 4096;
  const double rows = static_cast<double>(spec.rows());
  const double granule = static_cast<double>(GranuleRows(*spec.encoding.format));
  const double padded_rows = small ? rows * kRanks : std::min(rows + granule * kRanks, rows * kRanks);
  return 8 * padded_rows * static_cast<double>(spec.columns()) + kAlignmentBytes * kRanks;
}

// Reads a ModelSpec field by field and keeps what rules about the whole model need.
class Parser {
 public:
  explicit Parser(const v1::ModelSpec& proto) : proto_(proto), rules_(proto.format_rules()) {}

  absl::StatusOr<ModelSpec> Parse() {
    RETURN_IF_ERROR(ParseModelName());
    RETURN_IF_ERROR(CheckCounts());
    RETURN_IF_ERROR(ParseOptions());
    RETURN_IF_ERROR(ParseGroups());
    RETURN_IF_ERROR(rules_.Check());
    for (int i = 0; i < proto_.units_size(); ++i) RETURN_IF_ERROR(ParseUnit(i));
    RETURN_IF_ERROR(CheckRules());
    return std::move(spec_);
  }

 private:
  // Returns true for names that command lines and paths misread: `delete --help` succeeds and deletes nothing.
  static bool LooksLikeSomethingElse(absl::string_view name) {
    return name.front() == '-' || name == "." || name == ".." || name == "latest" ||
           absl::c_any_of(name, [](char byte) { return absl::ascii_iscntrl(static_cast<unsigned char>(byte)); });
  }

  absl::Status ParseModelName() {
    RETURN_IF_ERROR(CheckName(proto_.name()));
    if (proto_.name().find('/') != std::string::npos) {
      return Unexpected("a model name without '/'", DisplayName(proto_.name()));
    }
    if (LooksLikeSomethingElse(proto_.name())) {
      return Unexpected(
          "a model name that is neither an option (-x), nor a folder (., ..), nor latest, without control characters",
          DisplayName(proto_.name()));
    }
    spec_.name = proto_.name();
    return absl::OkStatus();
  }

  absl::Status CheckCounts() const {
    if (proto_.units_size() == 0) return Unexpected("at least one unit", "none");
    int64_t parameters = 0;
    for (const v1::UnitSpec& unit : proto_.units()) parameters += unit.parameters_size();
    if (parameters <= kMaxParameters) return absl::OkStatus();
    return Unexpected(absl::StrCat("at most ", kMaxParameters, " parameters"), parameters);
  }

  absl::Status ParseOptions() {
    if (proto_.has_shard_size()) {
      RETURN_IF_ERROR(CheckRange("shard_size", proto_.shard_size(), 1, kMaxShardSize));
      spec_.shard_size = proto_.shard_size();
    }
    if (proto_.has_small_parameter_bytes()) {
      if (proto_.small_parameter_bytes() < 0) {
        return Unexpected("small_parameter_bytes >= 0", proto_.small_parameter_bytes());
      }
      spec_.small_parameter_bytes = proto_.small_parameter_bytes();
    }
    if (proto_.has_gather_slots()) spec_.gather_slots = proto_.gather_slots();
    RETURN_IF_ERROR(CheckRange("gather_slots", spec_.gather_slots, 1, kMaxSlots));
    if (proto_.has_large_gather_slots()) spec_.large_gather_slots = proto_.large_gather_slots();
    RETURN_IF_ERROR(CheckRange("large_gather_slots", spec_.large_gather_slots, 1, spec_.gather_slots));
    if (proto_.has_gradient_slots()) spec_.gradient_slots = proto_.gradient_slots();
    RETURN_IF_ERROR(CheckRange("gradient_slots", spec_.gradient_slots, 1, kMaxSlots));
    return ParseStepOptions();
  }

  absl::Status ParseStepOptions() {
    ASSIGN_OR_RETURN(spec_.gradient_reduction, ParseEnum(proto_.gradient_reduction(), GradientReduction::kMean,
                                                         GradientReduction::kSum, "a gradient reduction"));
    spec_.seed = proto_.seed();
    if (proto_.has_step_timeout()) {
      ASSIGN_OR_RETURN(spec_.step_timeout, ParseTimeout(proto_.step_timeout()));
    }
    if (proto_.gradient_sums() != v1::GRADIENT_SUMS_UNSPECIFIED) {
      ASSIGN_OR_RETURN(spec_.gradient_sums, ParseEnum(proto_.gradient_sums(), GradientSums::kAtPush,
                                                      GradientSums::kAtPush, "gradient_sums AT_COMMIT or AT_PUSH"));
    }
    ASSIGN_OR_RETURN(spec_.accumulator_type, ParseEnum(proto_.accumulator_type(), GradientType::kFP32,
                                                       GradientType::kBF16, "accumulator_type FP32 or BF16"));
    return ParsePushes();
  }

  absl::Status ParsePushes() {
    if (!proto_.has_pushes_per_step()) return absl::OkStatus();
    const int pushes = proto_.pushes_per_step();
    // Their rounding allows one in any case.
    if (spec_.accumulator_type == GradientType::kBF16) {
      return CheckRange("pushes_per_step with BF16 accumulators", pushes, 1, 1);
    }
    RETURN_IF_ERROR(CheckRange("pushes_per_step", pushes, 1, std::numeric_limits<int>::max()));
    spec_.pushes_per_step = pushes;
    return absl::OkStatus();
  }

  absl::Status ParseGroups() {
    RETURN_IF_ERROR(CheckRange("number of groups", proto_.groups_size(), 0, kMaxGroups));
    for (int i = 0; i < proto_.groups_size(); ++i) {
      absl::StatusOr<ParameterGroup> group = ParseGroup(proto_.groups(i));
      if (!group.ok()) return Annotate(group.status(), absl::StrCat("group ", i));
      spec_.groups.push_back(*std::move(group));
    }
    if (spec_.groups.empty()) spec_.groups.emplace_back();
    return absl::OkStatus();
  }

  absl::Status ParseUnit(int index) {
    const v1::UnitSpec& proto = proto_.units(index);
    if (const absl::Status status = CheckName(proto.name()); !status.ok()) {
      return Annotate(status, absl::StrCat("unit ", index));
    }
    if (const absl::Status status = ParseUnitBody(proto); !status.ok()) {
      return Annotate(status, absl::StrCat("unit ", DisplayName(proto.name())));
    }
    for (const v1::ParameterSpec& parameter : proto.parameters()) {
      RETURN_IF_ERROR(ParseNamedParameter(parameter));
    }
    return absl::OkStatus();
  }

  absl::Status ParseUnitBody(const v1::UnitSpec& proto) {
    if (!unit_names_.insert(proto.name()).second) {
      return absl::InvalidArgumentError("duplicate unit name");
    }
    if (proto.parameters_size() == 0) return Unexpected("at least one parameter", "none");
    UnitSpec& unit = spec_.units.emplace_back();
    unit.name = proto.name();
    unit.parameters.reserve(proto.parameters_size());
    if (proto.has_reshard_after_forward()) {
      unit.reshard_after_forward = proto.reshard_after_forward();
    }
    return absl::OkStatus();
  }

  absl::Status ParseNamedParameter(const v1::ParameterSpec& proto) {
    UnitSpec& unit = spec_.units.back();
    if (const absl::Status status = CheckName(proto.name()); !status.ok()) {
      return Annotate(status, absl::StrCat("parameter ", unit.parameters.size(), " of unit ", DisplayName(unit.name)));
    }
    if (const absl::Status status = AddParameter(proto, unit); !status.ok()) {
      return Annotate(status, absl::StrCat("parameter ", DisplayName(proto.name())));
    }
    return absl::OkStatus();
  }

  absl::Status AddParameter(const v1::ParameterSpec& proto, UnitSpec& unit) {
    if (!parameter_names_.insert(proto.name()).second) {
      return absl::InvalidArgumentError("duplicate parameter name");
    }
    ASSIGN_OR_RETURN(ParameterSpec parameter, ParseByRules(proto));
    // Every slot may hold every unit; the 3 stands for the arena, a unit's resident slot and landed gradients.
    total_bytes_ += MaxSlotBytes(parameter, IsSmall(parameter, spec_.small_parameter_bytes)) *
                    (spec_.gather_slots + spec_.gradient_slots + 3);
    if (total_bytes_ > kMaxTotalBytes) {
      return Unexpected("sizes that fit 64 bits in total", "more from this parameter on");
    }
    if (parameter.placement == Placement::kOwned) owned_matrices_ += OwnedMatrices(parameter).count;
    if (owned_matrices_ > kMaxOwnedMatrices) {
      return Unexpected(absl::StrCat("at most ", kMaxOwnedMatrices, " matrices of placement OWNED in total"),
                        absl::StrCat(owned_matrices_, " with this parameter"));
    }
    unit.parameters.push_back(std::move(parameter));
    return absl::OkStatus();
  }

  absl::StatusOr<ParameterSpec> ParseByRules(const v1::ParameterSpec& proto) {
    const v1::FormatRule* rule = rules_.Match(proto.name());
    if (proto.format() != v1::FORMAT_UNSPECIFIED) return ParseParameter(proto, spec_.groups);
    if (rule == nullptr) return Unexpected("a format or a format rule that matches the name", "none");
    ASSIGN_OR_RETURN(const v1::ParameterSpec complete, ApplyRule(*rule, proto));
    absl::StatusOr<ParameterSpec> parameter = ParseParameter(complete, spec_.groups);
    if (parameter.ok()) return parameter;
    return Annotate(parameter.status(), absl::StrCat("by format rule ", DisplayName(rule->pattern())));
  }

  // Fails for a rule that matches no parameter, and checks fields of rules that no parameter has used.
  absl::Status CheckRules() const {
    if (const v1::FormatRule* rule = rules_.Unmatched(); rule != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("format rule ", DisplayName(rule->pattern()), " matches no parameter"));
    }
    for (const v1::FormatRule& rule : proto_.format_rules()) {
      ParameterSpec unused;
      if (const absl::Status status = ParseStorage(rule, unused); !status.ok()) {
        return Annotate(status, absl::StrCat("format rule ", DisplayName(rule.pattern())));
      }
    }
    return absl::OkStatus();
  }

  const v1::ModelSpec& proto_;
  FormatRules rules_;
  ModelSpec spec_;
  double total_bytes_ = 0;
  int64_t owned_matrices_ = 0;
  // Views of proto_'s strings.
  absl::flat_hash_set<absl::string_view> unit_names_;
  absl::flat_hash_set<absl::string_view> parameter_names_;
};

}  // namespace

absl::StatusOr<ModelSpec> ParseModelSpec(const v1::ModelSpec& proto) {
  absl::StatusOr<ModelSpec> spec = Parser(proto).Parse();
  if (spec.ok()) return spec;
  return Annotate(spec.status(), absl::StrCat("create model ", DisplayName(proto.name())));
}

}  // namespace paramshard
