#include "python/bindings/names.h"

#include <array>
#include <iterator>
#include "kernels/formats/format.h"
#include "kernels/optim/moment.h"

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
constexpr Name<MomentType> kMomentTypes[] = {
    {MomentType::kFP32, "FP32"}, {MomentType::kBF16, "BF16"}, {MomentType::kFP16, "FP16"}, {MomentType::kFP8, "FP8"}};
constexpr Name<MasterType> kMasterTypes[] = {{MasterType::kFP32, "FP32"},
                                             {MasterType::kBF16Remainder, "BF16_REMAINDER"}};
constexpr Name<GradientType> kGradientTypes[] = {{GradientType::kFP32, "FP32"}, {GradientType::kBF16, "BF16"}};
constexpr Name<GradientReduction> kReductions[] = {{GradientReduction::kMean, "mean"},
                                                   {GradientReduction::kSum, "sum"}};
constexpr Name<GradientSums> kSums[] = {{GradientSums::kAtCommit, "at_commit"}, {GradientSums::kAtPush, "at_push"}};
constexpr Name<AdamMode> kAdamModes[] = {{AdamMode::kAdamW, "adamw"}, {AdamMode::kL2, "l2"}};
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
constexpr Name<SaveState> kSaveStates[] = {
    {SaveState::kWaiting, "waiting"},     {SaveState::kCopying, "copying"},           {SaveState::kWriting, "writing"},
    {SaveState::kPublished, "published"}, {SaveState::kAbandoned, "abandoned"},       {SaveState::kUnknown, "unknown"},
    {SaveState::kSkipped, "skipped"},     {SaveState::kAlreadySaved, "already_saved"}};
constexpr Name<SaveReason> kSaveReasons[] = {{SaveReason::kCommits, "commits"},
                                             {SaveReason::kTime, "time"},
                                             {SaveReason::kTrainer, "trainer"},
                                             {SaveReason::kCall, "call"},
                                             {SaveReason::kDrain, "drain"}};
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

}  // namespace

absl::Span<const Name<Format>> NamesOf(Format) { return kFormatNames; }
absl::Span<const Name<ElementType>> NamesOf(ElementType) { return kElementTypes; }
absl::Span<const Name<Plane>> NamesOf(Plane) { return kPlanes; }
absl::Span<const Name<ScaleLayout>> NamesOf(ScaleLayout) { return kScaleLayouts; }
absl::Span<const Name<DelayedScaling::Algorithm>> NamesOf(DelayedScaling::Algorithm) { return kAlgorithms; }
absl::Span<const Name<DecodedElement>> NamesOf(DecodedElement) { return kDecodedElements; }
absl::Span<const Name<MomentType>> NamesOf(MomentType) { return kMomentTypes; }
absl::Span<const Name<MasterType>> NamesOf(MasterType) { return kMasterTypes; }
absl::Span<const Name<GradientType>> NamesOf(GradientType) { return kGradientTypes; }
absl::Span<const Name<GradientReduction>> NamesOf(GradientReduction) { return kReductions; }
absl::Span<const Name<GradientSums>> NamesOf(GradientSums) { return kSums; }
absl::Span<const Name<AdamMode>> NamesOf(AdamMode) { return kAdamModes; }
absl::Span<const Name<Initializer>> NamesOf(Initializer) { return kInitializers; }
absl::Span<const Name<Phase>> NamesOf(Phase) { return kPhaseNames; }
absl::Span<const Name<TensorKind>> NamesOf(TensorKind) { return kTensorKinds; }
absl::Span<const Name<TensorType>> NamesOf(TensorType) { return kTensorTypes; }
absl::Span<const Name<SaveState>> NamesOf(SaveState) { return kSaveStates; }
absl::Span<const Name<SaveReason>> NamesOf(SaveReason) { return kSaveReasons; }
absl::Span<const Name<ValueOrigin>> NamesOf(ValueOrigin) { return kValueOrigins; }

}  // namespace paramshard::python
