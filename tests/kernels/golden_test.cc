// The kernels against the golden cases, byte for byte.

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/codec.h"
#include "kernels/formats/float4.h"
#include "kernels/formats/float8.h"
#include "kernels/formats/scale_math.h"
#include "kernels/optim/adam.h"
#include "tests/kernels/golden.h"
#include "tests/kernels/golden_adam.h"
#include "tests/kernels/planes.h"

namespace paramshard {
namespace {

TEST(GoldenTest, CasesOfLaterFormatsAreCounted) {
  std::map<std::string, int> missing;
  int total = 0;
  for (const GoldenCase& golden : GoldenCases()) {
    const std::string what = MissingFor(golden);
    if (what.empty()) continue;
    ++missing[what];
    ++total;
  }
  std::string list;
  for (const auto& [what, count] : missing) absl::StrAppend(&list, list.empty() ? "" : ", ", what, ": ", count);
  if (total > 0) GTEST_SKIP() << total << " golden cases wait for what is not implemented yet: " << list;
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

// The scales of the row-wise plane have one of two roles.
void ExpectPlanes(const GoldenCase& golden, const OwnedPlanes& planes) {
  EXPECT_TRUE(SameBytes(golden.Bytes("row_data"), planes.row_wise.data));
  const std::string row_scales = golden.Has("row_scale") ? "row_scale" : "scale_inv";
  EXPECT_TRUE(SameBytes(golden.Bytes(row_scales), planes.row_wise.scales));
  if (!HasColumnPlane(golden.encoding().format)) return;
  EXPECT_TRUE(SameBytes(golden.Bytes("col_data"), planes.column_wise.data));
  EXPECT_TRUE(SameBytes(golden.Bytes("col_scale"), planes.column_wise.scales));
}

TEST(GoldenTest, MatricesAreQuantized) {
  for (const GoldenCase& golden : ComputableCases("quantize")) {
    SCOPED_TRACE(golden.name());
    ExpectPlanes(golden, Encode(golden.encoding(), golden.Values<float>("input"), golden.rows(), golden.cols()));
  }
}

void ExpectDecoded(const GoldenCase& golden, Plane plane, const OwnedPlane& encoded, const std::string& role) {
  if (!golden.Has(role)) return;
  const std::vector<float> decoded = Decode(golden.encoding(), plane, encoded, golden.rows(), golden.cols());
  EXPECT_TRUE(SameBytes(golden.Bytes(role), AsBytes(decoded))) << role;
}

TEST(GoldenTest, PlanesAreDequantized) {
  for (const GoldenCase& golden : ComputableCases("quantize")) {
    SCOPED_TRACE(golden.name());
    const OwnedPlanes planes = Encode(golden.encoding(), golden.Values<float>("input"), golden.rows(), golden.cols());
    ExpectDecoded(golden, Plane::kRowWise, planes.row_wise, "dequantized");
    ExpectDecoded(golden, Plane::kColumnWise, planes.column_wise, "dequantized_columns");
  }
}

// Runs all steps of a case and checks the state after each; the planes are those after the last.
OwnedPlanes RunSteps(const GoldenCase& golden, const Encoding& encoding) {
  CaseState state(golden);
  OwnedPlanes planes(encoding, golden.rows(), golden.cols());
  const std::vector<float> gradients = golden.Values<float>("grad");
  const nlohmann::json& steps = golden.options().at("steps");
  for (size_t t = 0; t < steps.size(); ++t) {
    FusedAdam(StepOf(golden.options(), steps[t]), gradients.data() + t * golden.rows() * golden.cols(), state.View(),
              golden.rows(), golden.cols(), encoding, planes.row_wise.View(), planes.column_wise.View());
    state.ExpectAfterStep(t);
  }
  return planes;
}

TEST(GoldenTest, AdamUpdatesTheState) {
  for (const GoldenCase& golden : ComputableCases("adam")) {
    SCOPED_TRACE(golden.name());
    for (const Encoding& encoding : AllEncodings()) RunSteps(golden, encoding);
  }
}

TEST(GoldenTest, AdamEncodesTheNewMaster) {
  for (const GoldenCase& golden : ComputableCases("adam_and_quantize")) {
    SCOPED_TRACE(golden.name());
    ExpectPlanes(golden, RunSteps(golden, golden.encoding()));
  }
}

TEST(GoldenTest, BiasCorrectionsAreComputed) {
  for (const char* kind : {"adam", "adam_and_quantize"}) {
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
