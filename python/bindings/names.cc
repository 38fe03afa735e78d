#include "python/bindings/names.h"

#include <array>
#include <iterator>
#include "kernels/formats/format.h"
#include "kernels/optim/moment.h"
#include "kernels/optim/optimizers.h"

namespace paramshard::python {
namespace {

constexpr Name<ElementType> kElementTypes[] = {
    {ElementType::kE4M3, "E4M3"}, {ElementType::kE5M2, "E5M2"}, {ElementType::kE2M1, "E2M1"}};
constexpr Name<Plane> kPlanes[] = {{Plane::kRowWise, "row_wise"}, {Plane::kColumnWise, "column_wise"}};
constexpr Name<ScaleLayout> kScaleLayouts[] = {{ScaleLayout::kCompact, "compact"},
                                               {ScaleLayout::kPadded128x4, "padded_128x4"},
                                               {ScaleLayout::kSwizzled128x4, "swizzled_128x4"}};
constexpr Name<DelayedScaling::Algorithm> kAlgorithms[] = {{DelayedScaling::Algorithm::kMax, "max"},
                                                           {DelayedScaling::Algorithm::kMostRecent, "most_recent"}};
constexpr Name<DecodedElement> kDecodedElements[] = {{DecodedElement::kFP32, "FP32"}, {DecodedElement::kBF16, "BF16"}};
constexpr Name<MasterType> kMasterTypes[] = {{MasterType::kFP32, "FP32"},
                                             {MasterType::kBF16Remainder, "BF16_REMAINDER"}};
constexpr Name<GradientType> kGradientTypes[] = {{GradientType::kFP32, "FP32"}, {GradientType::kBF16, "BF16"}};
constexpr Name<GradientReduction> kReductions[] = {{GradientReduction::kMean, "mean"},
                                                   {GradientReduction::kSum, "sum"}};
constexpr Name<Placement> kPlacements[] = {{Placement::kCut, "cut"}, {Placement::kOwned, "owned"}};
constexpr Name<GradientSums> kSums[] = {{GradientSums::kAtCommit, "at_commit"}, {GradientSums::kAtPush, "at_push"}};
constexpr Name<MuonRate> kMuonRates[] = {{MuonRate::kOriginal, "original"},
                                         {MuonRate::kMatchRmsAdamW, "match_rms_adamw"},
                                         {MuonRate::kSpectralUnclamped, "spectral_unclamped"}};
constexpr Name<Initializer> kInitializers[] = {
    {Initializer::kZeros, "zeros"},       {Initializer::kOnes, "ones"},
    {Initializer::kConstant, "constant"}, {Initializer::kNormal, "normal"},
    {Initializer::kUniform, "uniform"},   {Initializer::kTruncatedNormal, "truncated_normal"}};
constexpr Name<Phase> kPhaseNames[] = {
    {Phase::kForward, "forward"}, {Phase::kBackward, "backward"}, {Phase::kBoth, "both"}};
constexpr Name<TensorKind> kTensorKinds[] = {{TensorKind::kMaster, "master"},
                                             {TensorKind::kExpAvg, "exp_avg"},
                                             {TensorKind::kExpAvgSq, "exp_avg_sq"},
                                             {TensorKind::kMasterElements, "master_elements"},
                                             {TensorKind::kMasterRemainders, "master_remainders"},
                                             {TensorKind::kExpAvgElements, "exp_avg_elements"},
                                             {TensorKind::kExpAvgScales, "exp_avg_scales"},
                                             {TensorKind::kExpAvgSqElements, "exp_avg_sq_elements"},
                                             {TensorKind::kExpAvgSqScales, "exp_avg_sq_scales"}};
constexpr Name<TensorType> kTensorTypes[] = {{TensorType::kFP32, "FP32"},
                                             {TensorType::kBF16, "BF16"},
                                             {TensorType::kFP16, "FP16"},
                                             {TensorType::kFP8E4M3, "FP8_E4M3"},
                                             {TensorType::kInt16, "INT16"}};
constexpr Name<ValueOrigin> kValueOrigins[] = {
    {ValueOrigin::kInitial, "initial"},   {ValueOrigin::kImporting, "importing"}, {ValueOrigin::kImported, "imported"},
    {ValueOrigin::kRestored, "restored"}, {ValueOrigin::kTrained, "trained"},     {ValueOrigin::kLost, "lost"}};

constexpr auto kFormatNames = [] {
  std::array<Name<Format>, std::size(kFormats)> names{};
  for (size_t i = 0; i < names.size(); ++i) {
    names[i].first = kFormats[i].format;
    names[i].second = kFormats[i].name;
  }
  return names;
}();

// Names of kOptimizers in lower case.
constexpr auto kLowerCaseOptimizers = [] {
  std::array<std::array<char, 32>, kOptimizerCount> names{};
  for (size_t i = 0; i < names.size(); ++i) {
    for (size_t j = 0; kOptimizers[i].name[j] != '\0'; ++j) {
      const char letter = kOptimizers[i].name[j];
      names[i][j] = letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
    }
  }
  return names;
}();

constexpr auto kOptimizerNames = [] {
  std::array<Name<Optimizer>, kOptimizerCount> names{};
  for (size_t i = 0; i < names.size(); ++i) {
    names[i].first = kOptimizers[i].optimizer;
    names[i].second = kLowerCaseOptimizers[i].data();
  }
  return names;
}();

template <typename T>
nanobind::tuple TupleOf() {
  nanobind::list names;
  for (const auto& [value, name] : NamesOf(T())) names.append(name);
  return nanobind::tuple(names);
}

}  // namespace

absl::Span<const Name<Format>> NamesOf(Format) { return kFormatNames; }
absl::Span<const Name<ElementType>> NamesOf(ElementType) { return kElementTypes; }
absl::Span<const Name<Plane>> NamesOf(Plane) { return kPlanes; }
absl::Span<const Name<ScaleLayout>> NamesOf(ScaleLayout) { return kScaleLayouts; }
absl::Span<const Name<DelayedScaling::Algorithm>> NamesOf(DelayedScaling::Algorithm) { return kAlgorithms; }
absl::Span<const Name<DecodedElement>> NamesOf(DecodedElement) { return kDecodedElements; }
absl::Span<const Name<MomentType>> NamesOf(MomentType) {
  static const auto names = [] {
    std::array<Name<MomentType>, std::size(kMomentTypes)> made{};
    for (size_t i = 0; i < made.size(); ++i) made[i] = {kMomentTypes[i], MomentTypeName(kMomentTypes[i]).data()};
    return made;
  }();
  return names;
}
absl::Span<const Name<MasterType>> NamesOf(MasterType) { return kMasterTypes; }
absl::Span<const Name<GradientType>> NamesOf(GradientType) { return kGradientTypes; }
absl::Span<const Name<GradientReduction>> NamesOf(GradientReduction) { return kReductions; }
absl::Span<const Name<GradientSums>> NamesOf(GradientSums) { return kSums; }
absl::Span<const Name<Placement>> NamesOf(Placement) { return kPlacements; }
absl::Span<const Name<Optimizer>> NamesOf(Optimizer) { return kOptimizerNames; }
absl::Span<const Name<MuonRate>> NamesOf(MuonRate) { return kMuonRates; }
absl::Span<const Name<Initializer>> NamesOf(Initializer) { return kInitializers; }
absl::Span<const Name<Phase>> NamesOf(Phase) { return kPhaseNames; }
absl::Span<const Name<TensorKind>> NamesOf(TensorKind) { return kTensorKinds; }
absl::Span<const Name<TensorType>> NamesOf(TensorType) { return kTensorTypes; }
absl::Span<const Name<SaveState>> NamesOf(SaveState) { return kSaveStates; }
absl::Span<const Name<SaveReason>> NamesOf(SaveReason) { return kSaveReasons; }
absl::Span<const Name<ValueOrigin>> NamesOf(ValueOrigin) { return kValueOrigins; }

void BindNames(nanobind::module_& module) {
  module.attr("FORMATS") = TupleOf<Format>();
  module.attr("ELEMENT_TYPES") = TupleOf<ElementType>();
  module.attr("MOMENT_TYPES") = TupleOf<MomentType>();
  module.attr("MASTER_TYPES") = TupleOf<MasterType>();
  module.attr("OPTIMIZERS") = TupleOf<Optimizer>();
  module.attr("INITIALIZERS") = TupleOf<Initializer>();
  module.attr("VALUE_ORIGINS") = TupleOf<ValueOrigin>();
  module.attr("SAVE_STATES") = TupleOf<SaveState>();
  module.attr("SAVE_REASONS") = TupleOf<SaveReason>();
}

}  // namespace paramshard::python
