#include "server/store/shard.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/random/initial_values.h"
#include "tests/process_counts.h"
#include "tests/server/store/test_spec.h"
#include "tests/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// Two large parameters of block formats, one with bf16 moments in a group of its own, and a small one.
v1::ModelSpec TestSpec() {
  v1::ModelSpec spec = MakeSpec(
      "m", {MakeUnit("a", {MakeParameter("a.w", {300, 70}, v1::FORMAT_FP8_BLOCK_128X128), MakeParameter("a.b", {70})}),
            MakeUnit("b", {MakeParameter("b.w", {100, 64}, v1::FORMAT_MXFP8),
                           MakeParameter("b.v", {64, 16}, v1::FORMAT_BF16)})});
  spec.set_small_parameter_bytes(1000);
  spec.set_seed(99);
  spec.mutable_units(0)->mutable_parameters(0)->mutable_initial_value()->mutable_normal()->set_standard_deviation(0.5);
  spec.mutable_units(0)->mutable_parameters(1)->mutable_initial_value()->mutable_constant()->set_value(1);
  auto& uniform = *spec.mutable_units(1)->mutable_parameters(0)->mutable_initial_value()->mutable_uniform();
  uniform.set_low(-2);
  uniform.set_high(3);
  v1::ParameterSpec& other = *spec.mutable_units(1)->mutable_parameters(1);
  other.mutable_initial_value()->mutable_normal()->set_standard_deviation(2);
  other.set_exp_avg_type(v1::MOMENT_TYPE_BF16);
  other.set_exp_avg_sq_type(v1::MOMENT_TYPE_BF16);
  other.set_group(1);
  spec.add_groups();
  v1::ParameterGroup& group = *spec.add_groups();
  group.set_mode(v1::ADAM_MODE_L2);
  group.set_bias_correction(false);
  return spec;
}

const StepParameters kStep{
    .groups = {{.learning_rate = 0.1f, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.01f},
               {.learning_rate = 0.3f, .beta1 = 0.8f, .beta2 = 0.99f, .epsilon = 1e-6f, .weight_decay = 0.1f}},
    .gradient_scale = 0.25f};

void Append(std::vector<uint8_t>& bytes, const HostView& more) {
  bytes.insert(bytes.end(), more.bytes().begin(), more.bytes().end());
}

const std::unique_ptr<ComputeDevice> kDevice = MakeCpuDevice(0);

// One parameter's state in one piece.
struct WholeState {
  std::vector<uint8_t> master, exp_avg, exp_avg_sq;
  std::vector<std::vector<uint8_t>> planes;  // row data, row scales, column data, column scales

  bool operator==(const WholeState&) const = default;
};

// A model in memory, cut over some ranks.
class ShardedModel {
 public:
  explicit ShardedModel(int ranks) : spec_(Parse(TestSpec())), layout_(spec_, ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      absl::StatusOr<std::unique_ptr<Shard>> shard = Shard::Create(spec_, layout_, rank, kDevice.get());
      EXPECT_OK(shard);
      shards_.push_back(*std::move(shard));
    }
  }

  const ModelSpec& spec() const { return spec_; }
  const Layout& layout() const { return layout_; }
  std::vector<std::unique_ptr<Shard>>& shards() { return shards_; }

  // The rows of all ranks, one rank's after the other's: what a whole tensor's encoding gives.
  WholeState Whole(int unit, int parameter) const {
    WholeState whole;
    for (const auto& shard : shards_) {
      const ShardExtent* extent = shard->Find(unit, parameter);
      if (extent == nullptr) continue;
      Append(whole.master, *shard->Stored(*extent, StateTensor::kMaster));
      Append(whole.exp_avg, *shard->Stored(*extent, StateTensor::kExpAvg));
      Append(whole.exp_avg_sq, *shard->Stored(*extent, StateTensor::kExpAvgSq));
      const std::vector<HostView> planes = *shard->PlaneBytes(*extent);
      whole.planes.resize(planes.size());
      for (size_t i = 0; i < planes.size(); ++i) Append(whole.planes[i], planes[i]);
    }
    return whole;
  }
  std::vector<WholeState> Whole() const { return {Whole(0, 0), Whole(0, 1), Whole(1, 0), Whole(1, 1)}; }

  // Adds the owned rows of a whole gradient, as a push does.
  void Push(int unit, const std::vector<std::vector<float>>& gradients, const std::vector<int>& absent = {}) {
    for (const auto& shard : shards_) {
      const Shard::PushTarget target = shard->BeginPush(unit, absent);
      for (size_t parameter = 0; parameter < target.accumulators.size(); ++parameter) {
        if (target.accumulators[parameter] == nullptr) continue;
        const ShardExtent& extent = *shard->Find(unit, static_cast<int>(parameter));
        const float* source = gradients[parameter].data() + extent.rows.begin * shard->Spec(extent).columns;
        for (int64_t i = 0; i < extent.elements; ++i) {
          float& sum = target.accumulators[parameter][i];
          sum = target.overwrite[parameter] ? source[i] : sum + source[i];
        }
      }
    }
  }
  void Step(const StepParameters& step = kStep) {
    for (const auto& shard : shards_) EXPECT_OK(shard->Step(step));
  }

 private:
  const ModelSpec spec_;
  const Layout layout_;
  std::vector<std::unique_ptr<Shard>> shards_;
};

std::vector<std::vector<float>> RandomGradients(const ModelSpec& spec, int unit, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> gradients;
  for (const ParameterSpec& parameter : spec.units[unit].parameters) {
    std::vector<float>& values = gradients.emplace_back(parameter.rows * parameter.columns);
    std::generate(values.begin(), values.end(), [&] { return normal(random); });
  }
  return gradients;
}

// What the kernels make of a whole tensor, without any shard.
class Reference {
 public:
  Reference(const ModelSpec& spec, int unit, int parameter, int64_t index)
      : spec_(spec.units[unit].parameters[parameter]), group_(spec.groups[spec_.group]) {
    const int64_t elements = spec_.rows * spec_.columns;
    state_.master.resize(elements * sizeof(float));
    state_.exp_avg.resize(elements * MomentBytes(spec_.exp_avg_type));
    state_.exp_avg_sq.resize(elements * MomentBytes(spec_.exp_avg_sq_type));
    FillInitialValues(spec_.initial_value, spec.seed, index, 0, elements, master());
    for (const Plane plane : {Plane::kRowWise, Plane::kColumnWise}) {
      if (plane == Plane::kColumnWise && !HasColumnPlane(spec_.encoding.format)) continue;
      state_.planes.emplace_back(DataBytes(spec_.encoding, spec_.rows, spec_.columns));
      state_.planes.emplace_back(ScaleBytes(spec_.encoding, plane, spec_.rows, spec_.columns));
    }
    EncodePlanes(spec_.encoding, master(), spec_.rows, spec_.columns, PlaneAt(0), PlaneAt(2));
  }

  void Step(const std::vector<float>& gradient, const StepParameters& parameters = kStep) {
    ++step_;
    const GroupStep& group = parameters.groups[spec_.group];
    const AdamStep step{.learning_rate = group.learning_rate,
                        .beta1 = group.beta1,
                        .beta2 = group.beta2,
                        .epsilon = group.epsilon,
                        .weight_decay = group.weight_decay,
                        .mode = group_.mode,
                        .bias_correction1 = group_.bias_correction ? BiasCorrection(group.beta1, step_) : 1.0f,
                        .bias_correction2 = group_.bias_correction ? BiasCorrection(group.beta2, step_) : 1.0f,
                        .gradient_scale = parameters.gradient_scale};
    const AdamState state{.master = master(),
                          .exp_avg = {.data = state_.exp_avg.data(), .type = spec_.exp_avg_type},
                          .exp_avg_sq = {.data = state_.exp_avg_sq.data(), .type = spec_.exp_avg_sq_type}};
    FusedAdam(step, gradient.data(), state, spec_.rows, spec_.columns, spec_.encoding, PlaneAt(0), PlaneAt(2));
  }

  const WholeState& state() const { return state_; }

 private:
  float* master() { return reinterpret_cast<float*>(state_.master.data()); }
  MutablePlane PlaneAt(size_t first) {
    if (first >= state_.planes.size()) return {};
    return {.data = state_.planes[first].data(), .scales = state_.planes[first + 1].data()};
  }

  const ParameterSpec& spec_;
  const ParameterGroup& group_;
  WholeState state_;
  int64_t step_ = 0;
};

std::vector<Reference> References(const ModelSpec& spec) {
  return {Reference(spec, 0, 0, 0), Reference(spec, 0, 1, 1), Reference(spec, 1, 0, 2), Reference(spec, 1, 1, 3)};
}

class ShardingTest : public testing::TestWithParam<int> {
 protected:
  void ExpectEqual(const std::vector<Reference>& references) {
    const std::vector<WholeState> whole = model_.Whole();
    for (size_t i = 0; i < references.size(); ++i) {
      // No container in the message: it would print thousands of bytes.
      EXPECT_TRUE(whole[i] == references[i].state()) << "parameter " << i;
    }
  }

  ShardedModel model_{GetParam()};
  std::vector<Reference> references_ = References(model_.spec());
};

INSTANTIATE_TEST_SUITE_P(Ranks, ShardingTest, testing::Range(1, 6));

TEST_P(ShardingTest, InitialStateDoesNotDependOnTheCut) { ExpectEqual(references_); }

TEST_P(ShardingTest, EveryRowHasOneOwner) {
  for (int unit = 0; unit < 2; ++unit) {
    for (int parameter = 0; parameter < 2; ++parameter) {
      int64_t next = 0;
      for (const auto& shard : model_.shards()) {
        const ShardExtent* extent = shard->Find(unit, parameter);
        if (extent == nullptr) continue;
        EXPECT_EQ(extent->rows.begin, next);
        EXPECT_GT(extent->rows.size(), 0);
        EXPECT_EQ(extent->elements, extent->rows.size() * shard->Spec(*extent).columns);
        next = extent->rows.end;
      }
      EXPECT_EQ(next, model_.spec().units[unit].parameters[parameter].rows);
    }
  }
}

TEST_P(ShardingTest, AStepIsTheKernelsStepOfTheWholeTensor) {
  for (uint32_t step = 0; step < 3; ++step) {
    for (int unit = 0; unit < 2; ++unit) {
      const auto gradients = RandomGradients(model_.spec(), unit, 10 * step + static_cast<uint32_t>(unit));
      model_.Push(unit, gradients);
      for (int parameter = 0; parameter < 2; ++parameter) references_[2 * unit + parameter].Step(gradients[parameter]);
    }
    model_.Step();
    ExpectEqual(references_);
  }
}

TEST_P(ShardingTest, PushesOfOneStepAddUp) {
  const auto first = RandomGradients(model_.spec(), 1, 1);
  const auto second = RandomGradients(model_.spec(), 1, 2);
  model_.Push(1, first);
  model_.Push(1, second);
  model_.Step();
  for (int parameter = 0; parameter < 2; ++parameter) {
    std::vector<float> sum = first[parameter];
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += second[parameter][i];
    references_[2 + parameter].Step(sum);
  }
  ExpectEqual(references_);
}

// Nothing of a parameter without a gradient changes, its count of steps included: its next step is its first.
TEST_P(ShardingTest, AnAbsentGradientLeavesItsParameterAlone) {
  const auto first = RandomGradients(model_.spec(), 0, 1);
  const auto second = RandomGradients(model_.spec(), 0, 2);
  model_.Push(0, first, {1});
  model_.Step();
  references_[0].Step(first[0]);
  ExpectEqual(references_);
  model_.Push(0, second);
  model_.Step();
  references_[0].Step(second[0]);
  references_[1].Step(second[1]);
  ExpectEqual(references_);
  for (const auto& shard : model_.shards()) {
    for (const ShardExtent& extent : shard->extents()) {
      EXPECT_EQ(extent.step, extent.unit == 1 ? 0 : 2 - extent.parameter);
    }
  }
}

TEST_P(ShardingTest, DroppedGradientsLeaveEveryByte) {
  const std::vector<WholeState> before = model_.Whole();
  model_.Push(0, RandomGradients(model_.spec(), 0, 1));
  for (const auto& shard : model_.shards()) shard->DropGradients();
  EXPECT_TRUE(model_.Whole() == before);
  // And a step after it finds none.
  model_.Step();
  EXPECT_TRUE(model_.Whole() == before);
}

TEST_P(ShardingTest, SumsOfSquaresCountWhatWasPushed) {
  auto gradients = RandomGradients(model_.spec(), 1, 1);
  model_.Push(1, gradients, {1});
  double expected = 0;
  for (float value : gradients[0]) expected += static_cast<double>(value) * value;
  SquareSum total;
  for (const auto& shard : model_.shards()) {
    const SquareSum sum = *shard->SumGradients();
    total.sum += sum.sum;
    total.non_finite += sum.non_finite;
  }
  EXPECT_NEAR(total.sum, expected, expected * 1e-12);
  EXPECT_EQ(total.non_finite, 0);
}

TEST_P(ShardingTest, NonFiniteGradientsAreCounted) {
  auto gradients = RandomGradients(model_.spec(), 0, 1);
  gradients[0].front() = std::numeric_limits<float>::infinity();
  gradients[0].back() = -std::numeric_limits<float>::infinity();
  gradients[1][3] = std::numeric_limits<float>::quiet_NaN();
  model_.Push(0, gradients);
  int64_t non_finite = 0;
  for (const auto& shard : model_.shards()) non_finite += shard->SumGradients()->non_finite;
  EXPECT_EQ(non_finite, 3);
}

TEST_P(ShardingTest, SizesAreKnownBeforehand) {
  for (int rank = 0; rank < GetParam(); ++rank) {
    Shard& shard = *model_.shards()[rank];
    const ShardBytes bytes = Shard::SizeOf(model_.spec(), model_.layout(), rank);
    EXPECT_EQ(bytes.Total(), shard.bytes().Total());
    EXPECT_EQ(bytes.Total(), bytes.master + bytes.exp_avg + bytes.exp_avg_sq + bytes.gradients + bytes.planes);
    EXPECT_EQ(bytes.planes, shard.planes().size_bytes());
    int64_t elements = 0;
    for (const ShardExtent& extent : shard.extents()) elements += extent.elements;
    const int64_t padding = 64 * static_cast<int64_t>(shard.extents().size());
    EXPECT_GE(bytes.master, 4 * elements);
    EXPECT_LE(bytes.master, 4 * elements + padding);
    EXPECT_EQ(bytes.gradients, bytes.master);
    EXPECT_LE(bytes.exp_avg, bytes.master);
  }
}

class ShardTest : public testing::Test {
 protected:
  ShardTest() { EXPECT_EQ(model_.shards().size(), 2u); }
  Shard& shard(int rank = 0) { return *model_.shards()[rank]; }
  // Of the MXFP8 parameter on rank 0.
  const ShardExtent& extent() { return *shard().Find(1, 0); }
  uint8_t* Served(absl::Span<const uint8_t> span) {
    return shard().planes().data() + (span.data() - shard().planes().data());
  }

  ShardedModel model_{2};
};

TEST_F(ShardTest, StateBeginsAtZeroButForTheMaster) {
  for (const ShardExtent& extent : shard().extents()) {
    EXPECT_THAT(*shard().Read(extent, StateTensor::kExpAvg), Each(0.0f));
    EXPECT_THAT(*shard().Read(extent, StateTensor::kExpAvgSq), Each(0.0f));
    EXPECT_EQ(extent.step, 0);
    EXPECT_FALSE(extent.has_gradient);
  }
  absl::ReaderMutexLock lock(&shard().mutex());
  EXPECT_EQ(shard().version(), 0);
}

TEST_F(ShardTest, ExtentsBeginAtCacheLines) {
  for (const ShardExtent& extent : shard().extents()) {
    for (StateTensor tensor : {StateTensor::kMaster, StateTensor::kExpAvg, StateTensor::kExpAvgSq}) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(shard().Stored(extent, tensor)->data()) % 64, 0u);
    }
  }
}

TEST_F(ShardTest, ASmallParameterHasOneOwner) {
  EXPECT_NE(shard(0).Find(0, 1) == nullptr, shard(1).Find(0, 1) == nullptr);
}

TEST_F(ShardTest, TheFirstPushOverwritesAndLaterOnesAdd) {
  const auto overwrites = [&] {
    const Shard::PushTarget target = shard().BeginPush(1, {});
    EXPECT_NE(target.accumulators[0], nullptr);
    return std::vector<bool>{target.overwrite[0], target.overwrite[1]};
  };
  EXPECT_THAT(overwrites(), ElementsAre(true, true));
  EXPECT_THAT(overwrites(), ElementsAre(false, false));
  shard().DropGradients();
  EXPECT_THAT(overwrites(), ElementsAre(true, true));
  model_.Step();
  EXPECT_THAT(overwrites(), ElementsAre(true, true));
}

TEST_F(ShardTest, APushHasNoPlaceForWhatIsAbsentOrOwnedElsewhere) {
  const Shard::PushTarget absent = shard().BeginPush(1, {0});
  EXPECT_EQ(absent.accumulators[0], nullptr);
  EXPECT_NE(absent.accumulators[1], nullptr);
  EXPECT_TRUE(shard().BeginPush(1, {}).overwrite[0]) << "an absent push is none";
  Shard& other = shard(0).Find(0, 1) == nullptr ? shard(0) : shard(1);
  EXPECT_EQ(other.BeginPush(0, {}).accumulators[1], nullptr);
}

TEST_F(ShardTest, EveryStepCountsTheVersion) {
  model_.Step();
  model_.Step();
  shard(1).SetVersion(10);
  absl::ReaderMutexLock lock(&shard().mutex());
  EXPECT_EQ(shard().version(), 2);
  EXPECT_EQ(shard(1).version(), 10);
}

TEST_F(ShardTest, AFlippedByteOfAnyPlaneIsFound) {
  ASSERT_TRUE(*shard().PlanesMatch(extent()));
  const std::vector<HostView> spans = *shard().PlaneBytes(extent());
  ASSERT_EQ(spans.size(), 4u);
  for (const HostView& span : spans) {
    for (uint8_t* byte : {Served(span), Served(span) + span.size() - 1}) {
      *byte ^= 0x10;
      EXPECT_FALSE(*shard().PlanesMatch(extent()));
      *byte ^= 0x10;
      EXPECT_TRUE(*shard().PlanesMatch(extent()));
    }
  }
}

TEST_F(ShardTest, EncodingAnewRepairsPlanes) {
  std::fill_n(shard().planes().data(), shard().planes().size_bytes(), 0xee);
  EXPECT_FALSE(*shard().PlanesMatch(extent()));
  EXPECT_OK(shard().EncodePlanes());
  for (const ShardExtent& each : shard().extents()) EXPECT_TRUE(*shard().PlanesMatch(each));
}

TEST_F(ShardTest, WhatIsWrittenIsReadBack) {
  std::vector<float> values(extent().elements);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.25f;
  for (StateTensor tensor : {StateTensor::kMaster, StateTensor::kExpAvg, StateTensor::kExpAvgSq}) {
    EXPECT_OK(shard().Write(extent(), tensor, values));
    EXPECT_EQ(*shard().Read(extent(), tensor), values);
    EXPECT_EQ(shard().Stored(extent(), tensor)->size(), values.size() * sizeof(float));
  }
  EXPECT_FALSE(*shard().PlanesMatch(extent())) << "planes are the caller's to encode";
  EXPECT_OK(shard().EncodePlanes());
  EXPECT_TRUE(*shard().PlanesMatch(extent()));
  shard().SetStep(extent(), 41);
  EXPECT_EQ(extent().step, 41);
}

TEST_F(ShardTest, WritingOneExtentLeavesTheOthers) {
  const std::vector<WholeState> before = model_.Whole();
  EXPECT_OK(shard().Write(extent(), StateTensor::kMaster, std::vector<float>(extent().elements, 7.0f)));
  EXPECT_OK(shard().Write(extent(), StateTensor::kExpAvg, std::vector<float>(extent().elements, 8.0f)));
  const std::vector<WholeState> after = model_.Whole();
  EXPECT_TRUE(after[0] == before[0]);
  EXPECT_TRUE(after[1] == before[1]);
  EXPECT_TRUE(after[3] == before[3]);
  EXPECT_FALSE(after[2] == before[2]);
}

TEST_F(ShardTest, Bf16MomentsAreRoundedWhenWritten) {
  const ShardExtent& halves = *shard().Find(1, 1);
  std::vector<float> values(halves.elements, 1.0f + 1.0f / 1024);
  EXPECT_OK(shard().Write(halves, StateTensor::kExpAvg, values));
  EXPECT_THAT(*shard().Read(halves, StateTensor::kExpAvg), Each(DecodeBFloat16(EncodeBFloat16(values[0]))));
  EXPECT_EQ(shard().Stored(halves, StateTensor::kExpAvg)->size(), values.size() * 2);
}

TEST_F(ShardTest, AReaderSeesOneVersion) {
  constexpr int kSteps = 20;
  const auto gradients = RandomGradients(model_.spec(), 1, 1);
  // Decided beforehand, by a model of its own.
  std::vector<std::vector<float>> expected;
  ShardedModel reference(2);
  for (int step = 0; step <= kSteps; ++step) {
    expected.push_back(*reference.shards()[0]->Read(*reference.shards()[0]->Find(1, 0), StateTensor::kMaster));
    reference.Push(1, gradients);
    reference.Step();
  }
  std::thread steps([&] {
    for (int step = 0; step < kSteps; ++step) {
      model_.Push(1, gradients);
      model_.Step();
    }
  });
  for (int64_t version = 0; version < kSteps;) {
    absl::ReaderMutexLock lock(&shard().mutex());
    version = shard().version();
    ASSERT_TRUE(*shard().Read(extent(), StateTensor::kMaster) == expected[version]) << "version " << version;
    ASSERT_TRUE(*shard().PlanesMatch(extent())) << "version " << version;
  }
  steps.join();
}

TEST(ShardMemoryTest, WhatDoesNotFitIsRefusedAndNothingStays) {
  const int64_t before = OpenDescriptors();
  const ModelSpec spec = Parse(MakeSpec("m", {MakeUnit("a", {MakeParameter("a.w", {1 << 20, 1 << 20 >> 1})})}));
  const Layout layout(spec, 1);
  EXPECT_THAT(Shard::Create(spec, layout, 0, kDevice.get()), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(ShardMemoryTest, ARankMayOwnNothing) {
  const ModelSpec spec = Parse(MakeSpec("m", {MakeUnit("a", {MakeParameter("a.w", {1, 8})})}));
  const Layout layout(spec, 3);
  ASSERT_OK_AND_ASSIGN(const auto shard, Shard::Create(spec, layout, 2, kDevice.get()));
  EXPECT_TRUE(shard->extents().empty());
  EXPECT_EQ(shard->Find(0, 0), nullptr);
  EXPECT_EQ(shard->SumGradients()->sum, 0);
  EXPECT_OK(shard->Step({.groups = {{}}, .gradient_scale = 1}));
}

}  // namespace
}  // namespace paramshard::server
