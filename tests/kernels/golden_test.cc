// The kernels against the golden cases, byte for byte.

#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/codec.h"
#include "kernels/formats/delayed_scaling.h"
#include "kernels/formats/float4.h"
#include "kernels/formats/float8.h"
#include "kernels/formats/scale_math.h"
#include "kernels/optim/fused_step.h"
#include "kernels/optim/master_remainder.h"
#include "kernels/optim/moment.h"
#include "kernels/optim/muon.h"
#include "kernels/optim/orthogonalizer.h"
#include "kernels/reduce/gradient_sum.h"
#include "tests/kernels/golden.h"
#include "tests/kernels/golden_step.h"
#include "tests/kernels/planes.h"

namespace paramshard {
namespace {

// A kind that no test below reads would not be checked.
TEST(GoldenTest, EveryCaseIsOfAKnownKind) {
  size_t known = 0;
  for (const char* kind : {"elements", "quantize", "delayed_scale_update", "step", "step_and_quantize", "muon_step",
                           "param_remainder", "fp8_state", "gradient_sum"}) {
    EXPECT_FALSE(GoldenCases(kind).empty()) << kind;
    known += GoldenCases(kind).size();
  }
  EXPECT_EQ(known, GoldenCases().size());
}

template <typename Out, typename Function>
void ExpectElements(const GoldenCase& golden, const std::string& role, Function function) {
  std::vector<Out> actual;
  for (float value : golden.Values<float>("input")) actual.push_back(function(value));
  EXPECT_TRUE(SameBytes(golden.Bytes(role), AsBytes(actual))) << role;
}

template <typename Function>
void ExpectTable(const GoldenCase& golden, const std::string& role, int codes, Function function) {
  std::vector<float> actual;
  for (int code = 0; code < codes; ++code) actual.push_back(function(static_cast<uint8_t>(code)));
  EXPECT_TRUE(SameBytes(golden.Bytes(role), AsBytes(actual))) << role;
}

TEST(GoldenTest, ElementsAreCast) {
  const GoldenCase golden = GoldenCases("elements").front();
  ExpectElements<uint8_t>(golden, "e4m3", [](float x) { return E4M3::Encode(x); });
  ExpectElements<uint8_t>(golden, "e5m2", [](float x) { return E5M2::Encode(x); });
  ExpectElements<uint8_t>(golden, "e2m1", [](float x) { return E2M1::Encode(x); });
  ExpectElements<uint16_t>(golden, "bf16", [](float x) { return EncodeBFloat16(x); });
  ExpectElements<uint8_t>(golden, "e8m0_round_up_of_abs", [](float x) { return EncodeE8M0RoundUp(std::fabs(x)); });
}

TEST(GoldenTest, CodesAreDecoded) {
  const GoldenCase golden = GoldenCases("elements").front();
  ExpectTable(golden, "e4m3_values", 256, [](uint8_t code) { return E4M3::Decode(code); });
  ExpectTable(golden, "e5m2_values", 256, [](uint8_t code) { return E5M2::Decode(code); });
  ExpectTable(golden, "e2m1_values", 16, [](uint8_t code) { return E2M1::Decode(code); });
  ExpectTable(golden, "e8m0_values", 256, [](uint8_t code) { return DecodeE8M0(code); });
  ExpectTable(golden, "e8m0_encode_multipliers", 256, [](uint8_t code) { return E8M0EncodeMultiplier(code); });
}

// The scales of the row-wise plane have one of two roles. The amax of FP8_TENSOR_* is not stored, but returned.
void ExpectPlanes(const GoldenCase& golden, const OwnedPlanes& planes) {
  EXPECT_TRUE(SameBytes(golden.Bytes("row_data"), planes.row_wise.data));
  const std::string row_scales = golden.Has("row_scale") ? "row_scale" : "scale_inv";
  EXPECT_TRUE(SameBytes(golden.Bytes(row_scales), planes.row_wise.scales));
  if (AmaxBytes(golden.encoding().format) != 0) {
    EXPECT_TRUE(SameBytes(golden.Bytes("amax"), planes.row_wise.amax));
  }
  if (!HasColumnPlane(golden.encoding().format)) return;
  EXPECT_TRUE(SameBytes(golden.Bytes("col_data"), planes.column_wise.data));
  EXPECT_TRUE(SameBytes(golden.Bytes("col_scale"), planes.column_wise.scales));
}

void ExpectAmax(const GoldenCase& golden, float amax) {
  if (!golden.Has("amax")) return;
  EXPECT_TRUE(SameBytes(golden.Bytes("amax"), AsBytes(std::vector<float>{amax})));
}

TensorScaling CaseScaling(const GoldenCase& golden, const std::vector<float>& matrix) {
  return ScalingOf(matrix, golden.options().value("scale", 1.0f));
}

OwnedPlanes EncodeInput(const GoldenCase& golden) {
  const std::vector<float> input = golden.Values<float>("input");
  return Encode(golden.encoding(), input, golden.rows(), golden.cols(), CaseScaling(golden, input));
}

TEST(GoldenTest, MatricesAreQuantized) {
  for (const GoldenCase& golden : GoldenCases("quantize")) {
    SCOPED_TRACE(golden.name());
    ExpectPlanes(golden, EncodeInput(golden));
    ExpectAmax(golden, ScalingOf(golden.Values<float>("input")).amax);
  }
}

void ExpectDecoded(const GoldenCase& golden, Plane plane, const OwnedPlane& encoded, const std::string& role) {
  if (!golden.Has(role)) return;
  const std::vector<float> decoded = Decode(golden.encoding(), plane, encoded, golden.rows(), golden.cols());
  EXPECT_TRUE(SameBytes(golden.Bytes(role), AsBytes(decoded))) << role;
}

TEST(GoldenTest, PlanesAreDequantized) {
  for (const GoldenCase& golden : GoldenCases("quantize")) {
    SCOPED_TRACE(golden.name());
    const OwnedPlanes planes = EncodeInput(golden);
    ExpectDecoded(golden, Plane::kRowWise, planes.row_wise, "dequantized");
    ExpectDecoded(golden, Plane::kColumnWise, planes.column_wise, "dequantized_columns");
  }
}

// Runs all steps of a case and checks the state after each. Leaves the planes of a format that a step encodes in
// `planes`. Returns the master after the last.
std::vector<float> RunSteps(const GoldenCase& golden, const Encoding& encoding, OwnedPlanes& planes) {
  CaseState state(golden);
  // A master with a remainder is a BF16 parameter's.
  const Encoding stepped = state.is_split() ? Encoding{Format::kBF16} : encoding;
  const MutablePlane row_wise = state.is_split() ? state.weights() : planes.row_wise.View();
  const std::vector<float> gradients = golden.Values<float>("grad");
  const nlohmann::json& steps = golden.options().at("steps");
  for (size_t t = 0; t < steps.size(); ++t) {
    FusedStep(StepOf(golden.options(), steps[t]), gradients.data() + t * golden.rows() * golden.cols(), state.View(),
              golden.rows(), golden.cols(), stepped, row_wise, planes.column_wise.View());
    state.ExpectAfterStep(t);
  }
  return state.Master();
}

TEST(GoldenTest, StepsUpdateTheState) {
  for (const GoldenCase& golden : GoldenCases("step")) {
    SCOPED_TRACE(golden.name());
    for (const Encoding& encoding : AllEncodings()) {
      OwnedPlanes planes(encoding, golden.rows(), golden.cols());
      RunSteps(golden, encoding, planes);
    }
  }
}

TEST(GoldenTest, MuonStepsTheState) {
  for (const GoldenCase& golden : GoldenCases("muon_step")) {
    SCOPED_TRACE(golden.name());
    const int64_t rows = golden.rows();
    const int64_t cols = golden.cols();
    const NewtonSchulz iteration = IterationOf(golden);
    CaseMoment momentum(golden, "exp_avg");
    std::vector<float> master = golden.Values<float>("param");
    const std::vector<float> gradients = golden.Values<float>("grad");
    const nlohmann::json& steps = golden.options().at("steps");
    for (size_t t = 0; t < steps.size(); ++t) {
      const OptimizerStep step = MuonStepOf(golden.options(), steps[t]);
      const float* const gradient = gradients.data() + t * rows * cols;
      std::vector<uint16_t> update(rows * cols);
      StepMuonMomentum(step, gradient, momentum.View(), momentum.View(), rows, cols);
      MakeMuonUpdate(step, gradient, momentum.View(), rows, cols, update.data());
      momentum.ExpectAfterStep(t);
      ExpectStep(golden, "expected_direction", t, update);
      ASSERT_TRUE(MakeHostOrthogonalizer()->Run(iteration, {{update.data(), rows, cols, cols}}).ok());
      ExpectStep(golden, "expected_update", t, update);
      FusedStep(step, {update.data(), GradientType::kBF16}, {.master = master.data()}, rows, cols, {Format::kFP32}, {},
                {});
      ExpectStep(golden, "expected_param", t, master);
    }
  }
}

TEST(GoldenTest, StepsEncodeTheNewMaster) {
  for (const GoldenCase& golden : GoldenCases("step_and_quantize")) {
    SCOPED_TRACE(golden.name());
    const Encoding encoding = golden.encoding();
    OwnedPlanes planes(encoding, golden.rows(), golden.cols());
    const std::vector<float> master = RunSteps(golden, encoding, planes);
    if (EncodesAfterAmax(encoding.format)) planes = Encode(encoding, master, golden.rows(), golden.cols());
    ExpectPlanes(golden, planes);
    ExpectAmax(golden, ScalingOf(master).amax);
  }
}

TEST(GoldenTest, DelayedScalesAreUpdated) {
  for (const GoldenCase& golden : GoldenCases("delayed_scale_update")) {
    SCOPED_TRACE(golden.name());
    DelayedScaling::Options options;
    options.algorithm = golden.options().at("algorithm") == "max" ? DelayedScaling::Algorithm::kMax
                                                                  : DelayedScaling::Algorithm::kMostRecent;
    options.history_length = golden.options().at("history_length");
    options.margin = golden.options().at("margin");
    const float fp8_max = golden.encoding().element == ElementType::kE4M3 ? E4M3::kMax : E5M2::kMax;
    DelayedScaling scaling(options, fp8_max, golden.options().at("initial_scale").get<float>());
    std::vector<float> scales;
    std::vector<float> histories;
    for (float amax : golden.Values<float>("amax")) {
      scales.push_back(scaling.Update(amax));
      for (float entry : scaling.history()) histories.push_back(entry);
    }
    EXPECT_TRUE(SameBytes(golden.Bytes("scale"), AsBytes(scales)));
    if (!golden.Has("history")) continue;
    EXPECT_TRUE(SameBytes(golden.Bytes("history"), AsBytes(histories)));
  }
}

// Over the ranks of each group into float32, and over the groups into accumulators of either type.
TEST(GoldenTest, GradientsAreSummed) {
  for (const GoldenCase& golden : GoldenCases("gradient_sum")) {
    const std::vector<float> gradients = golden.Values<float>("gradients");
    const int64_t count = golden.rows() * golden.cols();
    const int64_t group_count = golden.options().at("ranks_per_group").get<int64_t>() * count;
    std::vector<std::vector<float>> groups;
    for (auto group = gradients.begin(); group != gradients.end(); group += group_count) {
      std::vector<const void*> ranks;
      for (int64_t first = 0; first < group_count; first += count) ranks.push_back(&group[first]);
      SumGradients(ranks, GradientType::kFP32, count, true, groups.emplace_back(count).data());
    }
    std::vector<const void*> sources;
    for (const std::vector<float>& group : groups) sources.push_back(group.data());
    std::vector<float> sum(count);
    SumGradients(sources, GradientType::kFP32, count, true, sum.data());
    EXPECT_TRUE(SameBytes(golden.Bytes("sum"), AsBytes(sum)));
    std::vector<uint16_t> rounded(count);
    SumGradients(sources, GradientType::kFP32, count, true, {rounded.data(), GradientType::kBF16});
    EXPECT_TRUE(SameBytes(golden.Bytes("sum_bf16"), AsBytes(rounded)));
  }
}

TEST(GoldenTest, MastersAreSplitAndJoined) {
  for (const GoldenCase& golden : GoldenCases("param_remainder")) {
    const std::vector<float> input = golden.Values<float>("input");
    const int64_t count = static_cast<int64_t>(input.size());
    std::vector<uint8_t> weights(input.size() * 2);
    std::vector<int16_t> remainders(input.size());
    SplitMasters(input.data(), count, weights.data(), remainders.data());
    EXPECT_TRUE(SameBytes(golden.Bytes("bf16"), weights));
    EXPECT_TRUE(SameBytes(golden.Bytes("remainder"), AsBytes(remainders)));
    std::vector<float> joined(input.size());
    JoinMasters(weights.data(), remainders.data(), count, joined.data());
    EXPECT_TRUE(SameBytes(golden.Bytes("input"), AsBytes(joined)));
  }
}

void ExpectFloat8Moment(const GoldenCase& golden, MomentKind kind, const std::string& name) {
  SCOPED_TRACE(name);
  const std::vector<float> values = golden.Values<float>(name);
  std::vector<uint8_t> data(values.size());
  std::vector<float> scales(MomentScaleCount(MomentType::kFP8, golden.rows(), golden.cols()));
  EncodeMoment(kind, values.data(), golden.rows(), golden.cols(), {data.data(), scales.data(), MomentType::kFP8});
  EXPECT_TRUE(SameBytes(golden.Bytes(name + "_data"), data));
  EXPECT_TRUE(SameBytes(golden.Bytes(name + "_scale_inv"), AsBytes(scales)));
  std::vector<float> decoded(values.size());
  DecodeMoment(kind, {data.data(), scales.data(), MomentType::kFP8}, golden.rows(), golden.cols(), decoded.data());
  EXPECT_TRUE(SameBytes(golden.Bytes(name + "_decoded"), AsBytes(decoded)));
}

TEST(GoldenTest, MomentsAreStoredInFloat8) {
  for (const GoldenCase& golden : GoldenCases("fp8_state")) {
    SCOPED_TRACE(golden.name());
    ExpectFloat8Moment(golden, MomentKind::kFirst, "exp_avg");
    ExpectFloat8Moment(golden, MomentKind::kSecond, "exp_avg_sq");
  }
}

TEST(GoldenTest, BiasCorrectionsAreComputed) {
  for (const char* kind : {"step", "step_and_quantize"}) {
    for (const GoldenCase& golden : GoldenCases(kind)) {
      SCOPED_TRACE(golden.name());
      for (const nlohmann::json& step : golden.options().at("steps")) {
        EXPECT_EQ(BiasCorrection(golden.options().at("beta1"), step.at("step")),
                  step.at("bias_correction1").get<float>());
        EXPECT_EQ(BiasCorrection(golden.options().at("beta2"), step.at("step")),
                  step.at("bias_correction2").get<float>());
      }
    }
  }
}

}  // namespace
}  // namespace paramshard
