// Restores into models that store the same state in other types.
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "kernels/formats/codec.h"
#include "kernels/formats/format.h"
#include "kernels/optim/moment.h"
#include "tests/common/model/random_model.h"
#include "tests/server/checkpoints/restore_fixture.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using checkpoint::ArrayKind;
using checkpoint::Checked;
using checkpoint::Reader;
using checkpoint::SavedModel;

ModelSpec SpecOf(std::vector<ParameterSpec> parameters) {
  ModelSpec spec{.name = "m"};
  spec.small_parameter_bytes = 512;
  spec.units.push_back({.name = "unit", .parameters = std::move(parameters)});
  return Checked(spec);
}

ParameterSpec Normal(std::string name, std::vector<int64_t> shape, Format format) {
  ParameterSpec parameter = MakeParameter(std::move(name), std::move(shape), format);
  parameter.initial_value = {.kind = Initializer::kNormal, .b = 0.5f};
  return parameter;
}

ParameterSpec Frozen(ParameterSpec parameter) {
  parameter.trainable = false;
  return parameter;
}

class ConversionTest : public RestoreTest {};

// Every bit of fp32 survives, also of NaN, denormal and infinite ones: the state is drawn.
TEST_F(ConversionTest, MastersAreSplitAndJoinedExactly) {
  ParameterSpec large = MakeParameter("large", {1025, 1033}, Format::kBF16);
  ParameterSpec small = MakeParameter("small", {3, 5}, Format::kBF16);
  const ModelSpec whole = SpecOf({large, small});
  large.master_type = small.master_type = MasterType::kBF16Remainder;
  const ModelSpec halves = SpecOf({large, small});
  const SavedModel saved(whole, 3);
  ShardWorld split(halves, {3, 3});
  ASSERT_OK(Restore(Write(saved, {2, 1}), split));
  const SavedModel saved_again = split.Save();
  ASSERT_EQ(saved_again.arrays().count("remainder/large"), 1u);
  ShardWorld joined(whole, {4, 2});
  ASSERT_OK(Restore(Write(saved_again, {3, 3}), joined));
  EXPECT_EQ(joined.FirstDifference(saved.arrays()), "");
  EXPECT_EQ(joined.Save().arrays(), saved.arrays());
}

// Converts between every two encodings of all formats.
TEST_F(ConversionTest, PlanesOfAnotherFormatAreThoseOfTheMasters) {
  const auto spec_of = [](Format format, std::optional<ElementType> element) {
    ParameterSpec kept = Frozen(Normal("kept", {70, 40}, format));
    kept.master_type = MasterType::kFP32;
    std::vector<ParameterSpec> parameters = {Normal("large", {301, 67}, format), Normal("small", {3, 5}, format), kept};
    for (ParameterSpec& parameter : parameters) parameter.encoding.element = element;
    return SpecOf(parameters);
  };
  ShardWorld trained(spec_of(Format::kFP8TensorDelayed, std::nullopt), {2, 2});
  for (int i = 0; i < 3; ++i) trained.Step();
  const SavedModel saved = trained.Save();
  const std::string folder = Write(saved, {2, 2});
  for (const FormatTraits& traits : kFormats) {
    for (const bool other_element : {false, true}) {
      if (other_element && traits.elements != ElementTypes::kFloat8) continue;
      SCOPED_TRACE(absl::StrCat(traits.name, other_element ? " of E5M2" : ""));
      const ModelSpec spec = spec_of(traits.format, other_element ? std::optional(ElementType::kE5M2) : std::nullopt);
      ShardWorld restored(spec, {3, 3});
      ASSERT_OK(Restore(folder, restored));
      EXPECT_EQ(restored.FirstDifference(saved.arrays()), "");
      EXPECT_TRUE(restored.PlanesMatch());
      // With the same history of amaxes, if it is of the same encoding; else as of masters that were written.
      ShardWorld written(spec, {3, 3});
      for (size_t rank = 0; rank < 3; ++rank) {
        Shard& from = *restored.shards()[rank];
        Shard& to = *written.shards()[rank];
        for (const ShardExtent& extent : from.extents()) {
          EXPECT_OK(to.Write(*to.extents().Find(extent.unit, extent.parameter), StateTensor::kMaster,
                             *from.arrays().Read(extent, StateTensor::kMaster)));
        }
      }
      const bool is_same = traits.format == Format::kFP8TensorDelayed && !other_element;
      written.Encode(is_same ? trained.book().records() : std::vector<ScalingBook::Record>());
      EXPECT_TRUE(restored.Planes() == written.Planes());
      EXPECT_TRUE(restored.book().records() == written.book().records());
    }
  }
}

// Rows of one array of a checkpoint, decoded all at once by the kernels.
std::vector<float> DecodedPlane(const SavedModel& saved, const ParameterSpec& spec) {
  const auto data = [&](ArrayKind kind) -> const uint8_t* {
    const auto found = saved.arrays().find(checkpoint::TensorKey(spec, kind));
    return found == saved.arrays().end() ? nullptr : found->second.data();
  };
  std::vector<float> values(spec.rows() * spec.columns());
  DecodePlane(EncodingOf(spec.encoding), Plane::kRowWise,
              {.data = data(ArrayKind::kRowWisePlane),
               .scales = data(ArrayKind::kRowWiseScale),
               .amax = data(ArrayKind::kAmax)},
              spec.rows(), spec.columns(), values.data());
  return values;
}

// Extents of the new format begin anywhere in blocks of the old one.
TEST_F(ConversionTest, FrozenPlanesBecomeWhatTheyDecodeTo) {
  for (const FormatTraits& from : kFormats) {
    const ModelSpec saved_spec = SpecOf({Frozen(Normal("f", {301, 67}, from.format))});
    const ShardWorld source(saved_spec, {2, 2});
    const SavedModel saved = source.Save();
    const std::string folder = Write(saved, {6, 2});
    const std::vector<float> values = DecodedPlane(saved, saved_spec.units[0].parameters[0]);
    for (const FormatTraits& to : kFormats) {
      SCOPED_TRACE(absl::StrCat(from.name, " to ", to.name));
      const ModelSpec spec = SpecOf({Frozen(Normal("f", {301, 67}, to.format))});
      ShardWorld restored(spec, {3, 3});
      ASSERT_OK(Restore(folder, restored));
      if (from.format == to.format) {
        EXPECT_EQ(restored.FirstDifference(saved.arrays()), "");
        continue;
      }
      ShardWorld written(spec, {3, 3});
      for (Shard* const shard : written.shards()) {
        for (const ShardExtent& extent : shard->extents()) {
          EXPECT_OK(shard->Write(extent, StateTensor::kMaster,
                                 absl::MakeConstSpan(values).subspan(extent.rows.begin * 67, extent.elements)));
        }
      }
      written.Encode();
      EXPECT_TRUE(restored.Planes() == written.Planes());
      // Daemons of one rank each need rows from the middle of what several have saved.
      ShardWorld apart(spec, {3, 3});
      ASSERT_OK_AND_ASSIGN(const Reader reader, Reader::Open(folder, {}));
      ASSERT_OK(RestoreByDaemons(reader, apart, 1));
      apart.Encode();
      EXPECT_TRUE(apart.Planes() == written.Planes());
    }
  }
}

TEST_F(ConversionTest, LargeFrozenPlanesAreDecodedInParts) {
  const ModelSpec saved_spec = SpecOf({Frozen(Normal("f", {1100, 4099}, Format::kFP8Block128x128))});
  const SavedModel saved = ShardWorld(saved_spec, {1, 1}).Save();
  ShardWorld restored(SpecOf({Frozen(Normal("f", {1100, 4099}, Format::kFP32))}), {3, 3});
  ASSERT_OK(Restore(Write(saved, {1, 1}), restored));
  const std::vector<float> values = DecodedPlane(saved, saved_spec.units[0].parameters[0]);
  const SavedModel again = restored.Save();
  const std::vector<uint8_t>& plane = again.arrays().at("plane/f");
  EXPECT_EQ(std::memcmp(plane.data(), values.data(), plane.size()), 0);
}

TEST_F(ConversionTest, FrozenDelayedPlanesStayWithAnotherHistory) {
  ParameterSpec parameter = Frozen(Normal("f", {30, 67}, Format::kFP8TensorDelayed));
  const SavedModel saved = ShardWorld(SpecOf({parameter}), {2, 2}).Save();
  parameter.encoding.delayed_scaling = DelayedScaling::Options{.history_length = 3};
  ShardWorld restored(SpecOf({parameter}), {3, 3});
  ASSERT_OK(Restore(Write(saved, {2, 2}), restored));
  EXPECT_EQ(restored.FirstDifference(saved.arrays()), "");
  EXPECT_EQ(restored.book().records()[0].scale, saved.common().book[0].scale);
  EXPECT_EQ(restored.book().records()[0].amax, saved.common().book[0].amax);
}

class MomentConversionTest : public ConversionTest,
                             public testing::WithParamInterface<std::tuple<MomentType, MomentType>> {};

INSTANTIATE_TEST_SUITE_P(Types, MomentConversionTest,
                         testing::Combine(testing::ValuesIn(kMomentTypes), testing::ValuesIn(kMomentTypes)),
                         [](const auto& info) {
                           return absl::StrCat(MomentTypeName(std::get<0>(info.param)), "To",
                                               MomentTypeName(std::get<1>(info.param)));
                         });

// The result equals the kernels' encoding of the kernels' decoded values.
TEST_P(MomentConversionTest, IsThatOfTheKernels) {
  const auto [from, to] = GetParam();
  const auto spec_of = [](MomentType type) {
    ParameterSpec large = Normal("large", {301, 333}, Format::kFP32);
    ParameterSpec small = Normal("small", {3, 5}, Format::kFP32);
    large.exp_avg_type = large.exp_avg_sq_type = small.exp_avg_type = small.exp_avg_sq_type = type;
    return SpecOf({large, small});
  };
  ShardWorld trained(spec_of(from), {2, 2});
  trained.Step();
  ShardWorld restored(spec_of(to), {3, 3});
  // Replicas have saved shares: what follows in a file does not follow in the tensor.
  ASSERT_OK(Restore(Write(trained.Save(), {6, 2}), restored, {.convert_moments = true}));
  ShardWorld written(spec_of(to), {2, 2});
  for (size_t rank = 0; rank < 2; ++rank) {
    const Shard& old = *trained.shards()[rank];
    Shard& shard = *written.shards()[rank];
    for (const ShardExtent& extent : old.extents()) {
      for (const StateTensor tensor : kStateTensors) {
        EXPECT_OK(shard.Write(*shard.extents().Find(extent.unit, extent.parameter), tensor,
                              *old.arrays().Read(extent, tensor)));
      }
    }
  }
  EXPECT_EQ(restored.FirstDifference(from == to ? trained.Save().arrays() : written.Save().arrays()), "");
}

// More than a piece of them, whose scales are read with each.
TEST_F(ConversionTest, LargeMomentsAreConvertedInParts) {
  const auto spec_of = [](MomentType type) {
    ParameterSpec parameter = MakeParameter("w", {1100, 4099}, Format::kFP32);
    parameter.exp_avg_type = type;
    return SpecOf({parameter});
  };
  const SavedModel saved(spec_of(MomentType::kFP8), 6);
  ShardWorld restored(spec_of(MomentType::kFP32), {3, 3});
  ASSERT_OK(Restore(Write(saved, {1, 1}), restored, {.convert_moments = true}));
  std::vector<float> values(int64_t{1100} * 4099);
  const SavedModel::Arrays& arrays = saved.arrays();
  DecodeMoment(MomentKind::kFirst,
               {.data = arrays.at("exp_avg/w").data(),
                .scales = reinterpret_cast<const float*>(arrays.at("exp_avg.scale/w").data()),
                .type = MomentType::kFP8},
               1100, 4099, values.data());
  const std::vector<uint8_t> decoded = restored.Save().arrays().at("exp_avg/w");
  EXPECT_EQ(std::memcmp(decoded.data(), values.data(), decoded.size()), 0);
}

}  // namespace
}  // namespace paramshard::server
