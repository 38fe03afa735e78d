#include "common/model/phase.h"

#include "common/model/proto_enums.h"
#include "gtest/gtest.h"
#include "kernels/formats/format.h"

namespace paramshard {
namespace {

TEST(PhaseTest, PhasesBringTheirPlanes) {
  for (const FormatTraits& traits : kFormats) {
    SCOPED_TRACE(traits.name);
    const Format format = traits.format;
    const bool has_columns = HasColumnPlane(format);
    EXPECT_EQ(MainPlane(format, Phase::kForward), Plane::kRowWise);
    EXPECT_EQ(MainPlane(format, Phase::kBackward), has_columns ? Plane::kColumnWise : Plane::kRowWise);
    EXPECT_EQ(MainPlane(format, Phase::kBoth), Plane::kRowWise);
    EXPECT_TRUE(Brings(format, Plane::kRowWise, Phase::kForward));
    EXPECT_FALSE(Brings(format, Plane::kColumnWise, Phase::kForward));
    EXPECT_EQ(Brings(format, Plane::kRowWise, Phase::kBackward), !has_columns);
    EXPECT_EQ(Brings(format, Plane::kColumnWise, Phase::kBackward), has_columns);
    EXPECT_TRUE(Brings(format, Plane::kRowWise, Phase::kBoth));
    EXPECT_EQ(Brings(format, Plane::kColumnWise, Phase::kBoth), has_columns);
  }
}

TEST(PhaseTest, NumbersOfMessagesArePhasesOrNone) {
  for (const Phase phase : kPhases) {
    EXPECT_EQ(PhaseFromProto(PhaseToProto(phase)), phase);
    EXPECT_TRUE(IsPhase(phase));
  }
  // 257 is 1 in the type that holds a phase.
  for (const int number : {-1, 0, 4, 256, 257}) EXPECT_EQ(PhaseFromProto(number), std::nullopt) << number;
  EXPECT_FALSE(IsPhase(Phase{0}));
  EXPECT_FALSE(IsPhase(Phase{4}));
}

TEST(ProtoEnumsTest, TensorKindsAndTypesAreTheirsOrNone) {
  for (int number = 1; number <= v1::TensorKind_MAX; ++number) {
    EXPECT_EQ(TensorKindToProto(TensorKindFromProto(number).value()), number);
  }
  for (const int number : {-1, 0, v1::TensorKind_MAX + 1, 257}) {
    EXPECT_EQ(TensorKindFromProto(number), std::nullopt) << number;
  }
  EXPECT_EQ(TensorTypeFromProto(v1::TENSOR_TYPE_UNSPECIFIED), TensorType::kFP32);
  for (int number = 1; number <= v1::TensorType_MAX; ++number) {
    EXPECT_EQ(TensorTypeToProto(TensorTypeFromProto(number).value()), number);
    EXPECT_GT(ElementBytes(static_cast<TensorType>(number)), 0);
  }
  for (const int number : {-1, v1::TensorType_MAX + 1, 257}) EXPECT_EQ(TensorTypeFromProto(number), std::nullopt);
}

}  // namespace
}  // namespace paramshard
