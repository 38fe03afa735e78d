#include "kernels/optim/fused_step_cuda.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/optim/optimizers.h"
#include "kernels/random/initial_values_cuda.h"
#include "tests/kernels/device_step.h"
#include "tests/kernels/golden_step.h"
#include "tests/kernels/gpu_test.h"
#include "tests/kernels/optimizer_state.h"
#include "tests/kernels/planes.h"
#include "tests/support/random_seed.h"
#include "tests/support/status_matchers.h"

namespace paramshard::gpu {
namespace {

using Steps = std::vector<std::optional<OptimizerStep>>;

class FusedStepPlanTest : public GpuTest {
 protected:
  // Runs the plan of all extents, in two passes where an amax is needed, and checks every byte and amax.
  void StepAndCheck(const std::vector<DeviceStep>& extents, FusedStepPlan& plan, const Steps& steps) {
    std::vector<TensorScaling> scalings;
    std::vector<float> expected_amaxes;
    std::vector<bool> stepped;
    for (size_t i = 0; i < extents.size(); ++i) {
      scalings.push_back(extents[i].scaling());
      stepped.push_back(steps[i].has_value());
      expected_amaxes.push_back(stepped[i] && NeedsAmax(extents[i].encoding().format) ? extents[i].scaling().amax : 0);
    }
    ASSERT_OK(plan.Step(steps, scalings, stream()));
    ASSERT_OK_AND_ASSIGN(const std::vector<float> amaxes, plan.Amaxes(stream()));
    EXPECT_TRUE(SameBytes(AsBytes(expected_amaxes), AsBytes(amaxes))) << "amaxes";
    ASSERT_OK(plan.EncodeAfterAmax(stepped, scalings, stream()));
    Synchronize();
    for (size_t i = 0; i < extents.size(); ++i) {
      SCOPED_TRACE(absl::StrCat("extent ", i, " of ", extents[i].rows(), " x ", extents[i].columns()));
      extents[i].Check();
    }
  }

  static absl::StatusOr<FusedStepPlan> PlanOf(const std::vector<DeviceStep>& extents) {
    std::vector<StepExtent> views;
    for (const DeviceStep& extent : extents) views.push_back(extent.extent());
    return FusedStepPlan::Create(kDevice, views);
  }

  // Gives every extent a gradient, and steps the extents with a step in `steps` on the host.
  static void Expect(std::vector<DeviceStep>& extents, const Steps& steps, RandomFloats& random) {
    for (size_t i = 0; i < extents.size(); ++i) {
      extents[i].SetGradient(random.Mixed(extents[i].count()));
      if (steps[i].has_value()) extents[i].ExpectStep(*steps[i]);
    }
  }
};

Encoding AnyEncoding(RandomFloats& random) {
  const std::vector<Encoding> encodings = AllEncodings();
  return encodings[random.Integer(0, static_cast<int64_t>(encodings.size()) - 1)];
}

OptimizerStep AnyStep(RandomFloats& random, int moment_count) {
  OptimizerStep step = TypicalStep(AnyOptimizer(random, moment_count));
  if (random.Integer(0, 1) == 0) step.bias_correction1 = step.bias_correction2 = 1.0f;
  if (random.Integer(0, 3) == 0) step.weight_decay = 0.0f;
  if (random.Integer(0, 3) == 0) step.gradient_scale = 1.0f / 3.0f;
  return step;
}

// How extents lie in memory: all that can be accessed four elements at once, arrays that begin so but have odd rows, or
// anything.
enum class Alignment { kRows, kArrays, kElements };
constexpr Alignment kAlignments[] = {Alignment::kRows, Alignment::kArrays, Alignment::kElements};

// Moments are aligned for their elements.
Offsets AnyOffsets(RandomFloats& random, Alignment alignment) {
  if (alignment == Alignment::kRows) return {};
  const int64_t unit = alignment == Alignment::kArrays ? 16 : 4;
  return {unit * random.Integer(0, 3), unit * random.Integer(0, 3), random.Integer(0, 5)};
}

DeviceStep AnyExtent(const Encoding& encoding, MomentType exp_avg, MomentType exp_avg_sq, Alignment alignment,
                     RandomFloats& random) {
  const int64_t rows = random.Integer(0, 300);
  const int64_t columns = alignment == Alignment::kRows ? 16 * random.Integer(1, 40) : random.Integer(1, 600);
  const GradientType gradients = random.Integer(0, 1) == 0 ? GradientType::kFP32 : GradientType::kBF16;
  const auto moment_count = static_cast<int>(random.Integer(0, kMomentCount));
  return DeviceStep(encoding, rows, columns, RandomState(random, rows, columns, exp_avg, exp_avg_sq, moment_count),
                    AnyOffsets(random, alignment), DeviceStep::Master::kFloat, gradients);
}

TEST_F(FusedStepPlanTest, EveryEncodingStepsAsOnTheHost) {
  const uint64_t seed = FirstSeed(41);
  RandomFloats random(seed);
  for (const Encoding& encoding : AllEncodings()) {
    SCOPED_TRACE(absl::StrCat(kSeedVariable, "=", seed, " ", FormatName(encoding.format), " ",
                              ElementTypeName(encoding.element), " ", encoding.power_of_two_scales));
    std::vector<DeviceStep> extents;
    for (MomentType exp_avg : kMomentTypes) {
      for (MomentType exp_avg_sq : kMomentTypes) {
        for (Alignment alignment : kAlignments) {
          extents.push_back(AnyExtent(encoding, exp_avg, exp_avg_sq, alignment, random));
        }
      }
    }
    ASSERT_OK_AND_ASSIGN(FusedStepPlan plan, PlanOf(extents));
    for (int step = 0; step < 2; ++step) {
      Steps steps;
      for (const DeviceStep& extent : extents) steps.push_back(AnyStep(random, extent.moment_count()));
      Expect(extents, steps, random);
      StepAndCheck(extents, plan, steps);
    }
  }
}

TEST_F(FusedStepPlanTest, BFloat16GradientsStepAsOnTheHost) {
  RandomFloats random(44);
  for (const Encoding& encoding :
       {Encoding{Format::kBF16}, Encoding{Format::kMXFP8}, Encoding{Format::kFP8Block128x128}}) {
    SCOPED_TRACE(FormatName(encoding.format));
    std::vector<DeviceStep> extents;
    Steps steps;
    for (MomentType type : kMomentTypes) {
      for (int64_t columns : {256, 260, 259}) {
        for (int count = 0; count <= kMomentCount; ++count) {
          extents.emplace_back(encoding, 140, columns, RandomState(random, 140, columns, type, type, count), Offsets{},
                               DeviceStep::Master::kFloat, GradientType::kBF16);
          steps.push_back(AnyStep(random, count));
        }
      }
    }
    ASSERT_OK_AND_ASSIGN(FusedStepPlan plan, PlanOf(extents));
    Expect(extents, steps, random);
    StepAndCheck(extents, plan, steps);
  }
}

TEST_F(FusedStepPlanTest, SmallShapesAndEdgesStepAsOnTheHost) {
  RandomFloats random(42);
  for (const Encoding& encoding : AllEncodings()) {
    std::vector<DeviceStep> extents;
    Steps steps;
    for (int64_t rows : {0, 1, 31, 32, 33, 127, 129}) {
      for (int64_t columns : {1, 3, 4, 31, 32, 36, 128, 132, 255, 257, 8196}) {
        if (rows * columns > 40000 && columns != 257) continue;
        for (MomentType type : {MomentType::kFP32, MomentType::kBF16, MomentType::kFP8}) {
          const auto count = static_cast<int>(random.Integer(0, kMomentCount));
          const OwnedState state = RandomState(random, rows, columns, type, type, count);
          extents.emplace_back(encoding, rows, columns, state, Offsets{});
          steps.push_back(AnyStep(random, count));
        }
      }
    }
    SCOPED_TRACE(FormatName(encoding.format));
    ASSERT_OK_AND_ASSIGN(FusedStepPlan plan, PlanOf(extents));
    Expect(extents, steps, random);
    StepAndCheck(extents, plan, steps);
  }
}

TEST_F(FusedStepPlanTest, ExtentsWithoutAStepKeepTheirBytes) {
  RandomFloats random(43);
  std::vector<DeviceStep> extents;
  for (int i = 0; i < 20; ++i) {
    extents.push_back(AnyExtent(AnyEncoding(random), kMomentTypes[random.Integer(0, 3)],
                                kMomentTypes[random.Integer(0, 3)], kAlignments[random.Integer(0, 2)], random));
  }
  ASSERT_OK_AND_ASSIGN(FusedStepPlan plan, PlanOf(extents));
  for (int round = 0; round < 4; ++round) {
    Steps steps(extents.size());
    for (size_t i = 0; i < steps.size(); ++i) {
      if (round > 0 && random.Integer(0, 1) == 0) steps[i] = AnyStep(random, extents[i].moment_count());
    }
    Expect(extents, steps, random);
    StepAndCheck(extents, plan, steps);
  }
}

TEST_F(FusedStepPlanTest, ExtremeValuesFollowTheFormula) {
  const std::vector<float> extremes = Extremes();
  std::vector<float> master, gradient, exp_avg, exp_avg_sq;
  for (float p : {0.5f, 0.0f, -0.0f, 0x1p-149f, -3e38f}) {
    for (float g : extremes) {
      for (float m : extremes) {
        for (float v : extremes) {
          master.push_back(p);
          gradient.push_back(g);
          exp_avg.push_back(m);
          exp_avg_sq.push_back(v);
        }
      }
    }
  }
  const auto count = static_cast<int64_t>(master.size());
  std::vector<DeviceStep> extents;
  Steps steps;
  for (const OptimizerTraits& optimizer : ElementwiseOptimizers()) {
    for (float epsilon : {1e-8f, 0.0f, 1e-30f, 1.0f, 1e30f}) {
      for (float correction : {1.0f, 0.1f, 1e-3f, 1e-9f, 3.0f}) {
        for (int64_t columns : {int64_t{1}, count}) {
          const OwnedState state = {master, Moments(MomentType::kFP32, exp_avg), Moments(MomentType::kFP32, exp_avg_sq),
                                    optimizer.moment_count};
          extents.emplace_back(Encoding{Format::kFP32}, count / columns, columns, state, Offsets{});
          extents.back().SetGradient(gradient);
          steps.push_back(TypicalStep(optimizer.optimizer));
          steps.back()->epsilon = epsilon;
          steps.back()->bias_correction1 = steps.back()->bias_correction2 = correction;
          extents.back().ExpectStep(*steps.back());
        }
      }
    }
  }
  ASSERT_OK_AND_ASSIGN(FusedStepPlan plan, PlanOf(extents));
  StepAndCheck(extents, plan, steps);
}

TEST_F(FusedStepPlanTest, BitsAreAnyBits) {
  const uint64_t seed = FirstSeed(44);
  SCOPED_TRACE(absl::StrCat(kSeedVariable, "=", seed));
  RandomFloats random(seed);
  constexpr int64_t kRows = 256;
  constexpr int64_t kColumns = 512;
  std::vector<DeviceStep> extents;
  Steps steps;
  for (const Encoding& encoding : AllEncodings()) {
    for (int moments = 0; moments <= kMomentCount; ++moments) {
      const OwnedState state = {random.AnyBits(kRows * kColumns),
                                Moments(MomentType::kFP32, random.AnyBits(kRows * kColumns)),
                                Moments(MomentType::kFP32, random.AnyBits(kRows * kColumns)), moments};
      extents.emplace_back(encoding, kRows, kColumns, state, Offsets{});
      extents.back().SetGradient(random.AnyBits(kRows * kColumns));
      steps.push_back(AnyStep(random, moments));
      extents.back().ExpectStep(*steps.back());
    }
  }
  ASSERT_OK_AND_ASSIGN(FusedStepPlan plan, PlanOf(extents));
  StepAndCheck(extents, plan, steps);
}

// Rows that get no gradient: moments that decayed to zero or to subnormal values.
TEST_F(FusedStepPlanTest, ZeroAndSubnormalMomentsStepAsOnTheHost) {
  RandomFloats random(45);
  constexpr int64_t kCount = 64 * 4096;
  std::vector<DeviceStep> extents;
  Steps steps;
  for (const OptimizerTraits& optimizer : ElementwiseOptimizers()) {
    for (float scale : {0.0f, 0x1p-149f, 0x1p-140f, 0x1p-126f, 0x1p-100f, 0x1p-80f}) {
      for (float master_scale : {0.0f, 1.0f}) {
        std::vector<float> squares = random.Normal(kCount, 2.0f * scale);
        for (float& value : squares) value = std::fabs(value);
        const OwnedState state = {random.Normal(kCount, master_scale),
                                  Moments(MomentType::kFP32, random.Normal(kCount, scale)),
                                  Moments(MomentType::kFP32, squares), optimizer.moment_count};
        extents.emplace_back(Encoding{Format::kMXFP8}, 64, 4096, state, Offsets{});
        extents.back().SetGradient(std::vector<float>(kCount, 0.0f));
        steps.push_back(TypicalStep(optimizer.optimizer));
        if (master_scale == 0.0f) steps.back()->weight_decay = 0.0f;
        extents.back().ExpectStep(*steps.back());
      }
    }
  }
  ASSERT_OK_AND_ASSIGN(FusedStepPlan plan, PlanOf(extents));
  StepAndCheck(extents, plan, steps);
}

TEST_F(FusedStepPlanTest, MastersAreEncodedWithoutAStep) {
  RandomFloats random(46);
  std::vector<DeviceStep> extents;
  std::vector<TensorScaling> scalings;
  std::vector<float> expected_amaxes;
  for (const Encoding& encoding : AllEncodings()) {
    for (Alignment alignment : kAlignments) {
      extents.push_back(AnyExtent(encoding, MomentType::kFP32, MomentType::kFP32, alignment, random));
      extents.back().ExpectEncoded();
      scalings.push_back(extents.back().scaling());
      expected_amaxes.push_back(NeedsAmax(encoding.format) ? scalings.back().amax : 0.0f);
    }
  }
  ASSERT_OK_AND_ASSIGN(FusedStepPlan plan, PlanOf(extents));
  ASSERT_OK(plan.MeasureAmaxes(stream()));
  ASSERT_OK_AND_ASSIGN(const std::vector<float> amaxes, plan.Amaxes(stream()));
  EXPECT_TRUE(SameBytes(AsBytes(expected_amaxes), AsBytes(amaxes)));
  ASSERT_OK(plan.Encode(scalings, stream()));
  Synchronize();
  for (const DeviceStep& extent : extents) extent.Check();
}

TEST_F(FusedStepPlanTest, SplitMastersStepAsOnTheHost) {
  RandomFloats random(48);
  std::vector<DeviceStep> extents;
  for (MomentType exp_avg : kMomentTypes) {
    for (MomentType exp_avg_sq : kMomentTypes) {
      for (Alignment alignment : kAlignments) {
        const int64_t rows = random.Integer(0, 300);
        const int64_t columns = random.Integer(1, 300);
        const auto count = static_cast<int>(random.Integer(0, kMomentCount));
        extents.emplace_back(Encoding{Format::kBF16}, rows, columns,
                             RandomState(random, rows, columns, exp_avg, exp_avg_sq, count),
                             AnyOffsets(random, alignment), DeviceStep::Master::kSplit);
      }
    }
  }
  ASSERT_OK_AND_ASSIGN(FusedStepPlan plan, PlanOf(extents));
  for (int round = 0; round < 2; ++round) {
    Steps steps;
    for (const DeviceStep& extent : extents) steps.push_back(AnyStep(random, extent.moment_count()));
    Expect(extents, steps, random);
    StepAndCheck(extents, plan, steps);
  }
  ASSERT_OK(plan.Encode({}, stream()));
  Synchronize();
  for (const DeviceStep& extent : extents) extent.Check();
}

// All kinds of extents in one plan.
TEST_F(FusedStepPlanTest, MixedExtentsStepTogether) {
  RandomFloats random(49);
  std::vector<DeviceStep> extents;
  for (int i = 0; i < 150; ++i) {
    extents.push_back(AnyExtent(AnyEncoding(random), kMomentTypes[random.Integer(0, 3)],
                                kMomentTypes[random.Integer(0, 3)], kAlignments[random.Integer(0, 2)], random));
  }
  ASSERT_OK_AND_ASSIGN(FusedStepPlan plan, PlanOf(extents));
  for (int round = 0; round < 2; ++round) {
    Steps steps;
    for (const DeviceStep& extent : extents) steps.push_back(AnyStep(random, extent.moment_count()));
    Expect(extents, steps, random);
    StepAndCheck(extents, plan, steps);
  }
}

// Two extents of a tensor store the same bytes as the whole tensor if all are encoded with the amax of the whole.
TEST_F(FusedStepPlanTest, CutTensorsAreEncodedLikeTheWhole) {
  RandomFloats random(50);
  constexpr int64_t kRows = 256;
  constexpr int64_t kColumns = 200;
  constexpr int64_t kCut = 128;
  for (const Encoding& encoding : AllEncodings()) {
    SCOPED_TRACE(FormatName(encoding.format));
    const std::vector<float> matrix = random.Normal(kRows * kColumns, 1.0f);
    const auto part = [&](int64_t first_row, int64_t rows) {
      const auto first = matrix.begin() + first_row * kColumns;
      const std::vector<float> values(first, first + rows * kColumns);
      const OwnedState state = {values, Moments(MomentType::kFP32, values), Moments(MomentType::kFP32, values)};
      return DeviceStep(encoding, rows, kColumns, state, Offsets{});
    };
    std::vector<DeviceStep> extents;
    extents.push_back(part(0, kCut));
    extents.push_back(part(kCut, kRows - kCut));
    extents.push_back(part(0, kRows));
    ASSERT_OK_AND_ASSIGN(FusedStepPlan plan, PlanOf(extents));
    ASSERT_OK(plan.MeasureAmaxes(stream()));
    ASSERT_OK_AND_ASSIGN(const std::vector<float> amaxes, plan.Amaxes(stream()));
    EXPECT_EQ(std::max(amaxes[0], amaxes[1]), amaxes[2]);
    ASSERT_OK(plan.Encode(std::vector<TensorScaling>(3, {amaxes[2], 3.0f}), stream()));
    Synchronize();
    std::vector<uint8_t> cut = extents[0].DownloadRowData();
    const std::vector<uint8_t> rest = extents[1].DownloadRowData();
    cut.insert(cut.end(), rest.begin(), rest.end());
    EXPECT_TRUE(SameBytes(extents[2].DownloadRowData(), cut));
  }
}

TEST_F(FusedStepPlanTest, PlanesMayBeLeftOut) {
  RandomFloats random(47);
  for (const Encoding& encoding : AllEncodings()) {
    const OwnedState state = RandomState(random, 64, 40, MomentType::kFP32, MomentType::kFP32);
    std::vector<DeviceStep> extents;
    extents.emplace_back(Encoding{Format::kFP32}, 64, 40, state, Offsets{});
    StepExtent view = extents[0].extent();
    view.encoding = encoding;
    view.row_wise = {};
    view.column_wise = {};
    ASSERT_OK_AND_ASSIGN(FusedStepPlan plan, FusedStepPlan::Create(kDevice, {view}));
    const std::vector<float> gradient = random.Mixed(64 * 40);
    extents[0].SetGradient(gradient);
    OwnedState expected = state;
    const OptimizerStep step = TypicalStep(Optimizer::kAdamW);
    FusedStep(step, gradient.data(), expected.View(), 64, 40, encoding, {}, {});
    ASSERT_OK(plan.Step({step}, {TensorScaling{}}, stream()));
    Synchronize();
    EXPECT_TRUE(SameBytes(AsBytes(expected.master), AsBytes(extents[0].DownloadMaster())));
  }
}

TEST_F(FusedStepPlanTest, RemaindersWithoutWeightsAreRefused) {
  RandomFloats random(51);
  const DeviceStep other(Encoding{Format::kFP16}, 8, 8, RandomState(random, 8, 8, MomentType::kFP32, MomentType::kFP32),
                         Offsets{});
  const DeviceArray<int16_t> remainder(std::vector<int16_t>(64));
  StepExtent extent = other.extent();
  extent.state.remainder = remainder.data();
  EXPECT_THAT(FusedStepPlan::Create(kDevice, {extent}),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("got format FP16")));
}

TEST_F(FusedStepPlanTest, MissingScalingsAreRefused) {
  RandomFloats random(52);
  std::vector<DeviceStep> extents;
  extents.push_back(
      AnyExtent(Encoding{Format::kFP8TensorDelayed}, MomentType::kFP32, MomentType::kFP32, Alignment::kRows, random));
  ASSERT_OK_AND_ASSIGN(FusedStepPlan plan, PlanOf(extents));
  EXPECT_THAT(plan.Step({AnyStep(random, extents[0].moment_count())}, {}, stream()),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("want scalings of 1 extents, got 0")));
}

TEST_F(FusedStepPlanTest, NoExtentsAreFine) {
  ASSERT_OK_AND_ASSIGN(FusedStepPlan plan, FusedStepPlan::Create(kDevice, {}));
  EXPECT_OK(plan.Step({}, {}, stream()));
  EXPECT_OK(plan.Encode({}, stream()));
}

// A view's memory on the GPU, and back.
template <typename T>
class Mirror {
 public:
  Mirror(T* host, int64_t count) : host_(host), device_(std::vector<T>(host, host + (host == nullptr ? 0 : count))) {}

  T* device() const { return host_ == nullptr ? nullptr : device_.data(); }
  void Fetch() const {
    const std::vector<T> values = device_.Download();
    std::copy(values.begin(), values.end(), host_);
  }

 private:
  T* host_;
  DeviceArray<T> device_;
};

class MomentMirror {
 public:
  MomentMirror(const MutableMoment& host, int64_t rows, int64_t cols)
      : type_(host.type),
        data_(static_cast<uint8_t*>(host.data), rows * cols * MomentBytes(host.type)),
        scales_(host.scales, MomentScaleCount(host.type, rows, cols)) {}

  MutableMoment View() const { return {data_.device(), scales_.device(), type_}; }
  void Fetch() const {
    data_.Fetch();
    scales_.Fetch();
  }

 private:
  MomentType type_;
  Mirror<uint8_t> data_;
  Mirror<float> scales_;
};

TEST_F(FusedStepPlanTest, GoldenCasesUpdateTheState) {
  for (const char* kind : {"step", "step_and_quantize"}) {
    for (const GoldenCase& golden : ComputableCases(kind)) {
      SCOPED_TRACE(golden.name());
      const int64_t count = golden.rows() * golden.cols();
      CaseState state(golden);
      const OptimizerState view = state.View();
      const Mirror<float> master(view.master, count);
      const Mirror<int16_t> remainder(view.remainder, count);
      const Mirror<uint8_t> weights(state.weights().data, state.is_split() ? count * 2 : 0);
      const MomentMirror exp_avg(view.moments[MomentKind::kFirst], golden.rows(), golden.cols());
      const MomentMirror exp_avg_sq(view.moments[MomentKind::kSecond], golden.rows(), golden.cols());
      const std::vector<float> gradients = golden.Values<float>("grad");
      DeviceArray<float> gradient{std::vector<float>(count)};
      StepExtent extent;
      extent.gradient = gradient.data();
      extent.state = {master.device(), remainder.device(), {exp_avg.View(), exp_avg_sq.View()}};
      extent.rows = golden.rows();
      extent.columns = golden.cols();
      extent.encoding = {Format::kBF16};
      if (state.is_split()) extent.row_wise.data = weights.device();
      const nlohmann::json& steps = golden.options().at("steps");
      ASSERT_OK_AND_ASSIGN(FusedStepPlan plan, FusedStepPlan::Create(kDevice, {extent}));
      for (size_t t = 0; t < steps.size(); ++t) {
        gradient.Upload({gradients.begin() + t * count, gradients.begin() + (t + 1) * count});
        ASSERT_OK(plan.Step({StepOf(golden.options(), steps[t])}, {}, stream()));
        Synchronize();
        master.Fetch();
        remainder.Fetch();
        weights.Fetch();
        exp_avg.Fetch();
        exp_avg_sq.Fetch();
        state.ExpectAfterStep(t);
      }
    }
  }
}

// Golden cases that quantize a matrix, or the master after steps.
TEST_F(FusedStepPlanTest, GoldenMatricesAreEncoded) {
  for (const char* kind : {"quantize", "step_and_quantize"}) {
    for (const GoldenCase& golden : ComputableCases(kind)) {
      SCOPED_TRACE(golden.name());
      std::vector<float> matrix;
      if (golden.kind() == "quantize") {
        matrix = golden.Values<float>("input");
      } else {
        CaseState state(golden);
        const Encoding stepped = state.is_split() ? Encoding{Format::kBF16} : Encoding{Format::kFP32};
        const MutablePlane weights = state.is_split() ? state.weights() : MutablePlane{};
        const std::vector<float> gradients = golden.Values<float>("grad");
        const nlohmann::json& steps = golden.options().at("steps");
        for (size_t t = 0; t < steps.size(); ++t) {
          FusedStep(StepOf(golden.options(), steps[t]), gradients.data() + t * golden.rows() * golden.cols(),
                    state.View(), golden.rows(), golden.cols(), stepped, weights, {});
        }
        matrix = state.Master();
      }
      const std::vector<float> zeros(matrix.size());
      const OwnedState state = {matrix, Moments(MomentType::kFP32, zeros), Moments(MomentType::kFP32, zeros)};
      std::vector<DeviceStep> extents;
      extents.emplace_back(golden.encoding(), golden.rows(), golden.cols(), state, Offsets{});
      extents[0].set_scaling({0.0f, golden.options().value("scale", 1.0f)});
      extents[0].ExpectEncoded();
      ASSERT_OK_AND_ASSIGN(FusedStepPlan plan, PlanOf(extents));
      ASSERT_OK(plan.Encode({extents[0].scaling()}, stream()));
      Synchronize();
      EXPECT_TRUE(SameBytes(golden.Bytes("row_data"), extents[0].DownloadRowData()));
      extents[0].Check();
    }
  }
}

// The last elements of an extent of more than 2^32 elements, and the first.
TEST_F(FusedStepPlanTest, IndicesAreOf64Bits) {
  constexpr int64_t kColumns = 65536;
  constexpr int64_t kRows = 65536 + 32;
  constexpr int64_t kCount = kRows * kColumns;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  constexpr int64_t kNeeded = kCount * (4 * 4 + 2) + (int64_t{1} << 30);
  if (static_cast<int64_t>(free_bytes) < kNeeded) GTEST_SKIP() << "needs " << kNeeded << " bytes of device memory";
  uint8_t* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, kNeeded), cudaSuccess);
  uint8_t* next = memory;
  const auto take = [&](int64_t bytes) { return std::exchange(next, next + bytes); };
  StepExtent extent;
  float* const gradient = reinterpret_cast<float*>(take(kCount * 4));
  extent.gradient = gradient;
  extent.state.master = reinterpret_cast<float*>(take(kCount * 4));
  extent.state.moments[MomentKind::kFirst].data = take(kCount * 4);
  extent.state.moments[MomentKind::kSecond].data = take(kCount * 4);
  extent.rows = kRows;
  extent.columns = kColumns;
  extent.encoding = {Format::kMXFP8};
  extent.row_wise = {take(kCount), nullptr};
  extent.column_wise = {take(kCount), nullptr};
  extent.row_wise.scales = take(kCount / 32);
  extent.column_wise.scales = take(kCount / 32);
  const InitialValue normal = {Initializer::kNormal, 0.0f, 1.0f};
  const InitialValue uniform = {Initializer::kUniform, 0.0f, 1.0f};
  float* const exp_avg = static_cast<float*>(extent.state.moments[MomentKind::kFirst].data);
  float* const exp_avg_sq = static_cast<float*>(extent.state.moments[MomentKind::kSecond].data);
  ASSERT_OK(FillInitialValues(normal, 1, 0, 0, kCount, gradient, stream()));
  ASSERT_OK(FillInitialValues(normal, 1, 1, 0, kCount, extent.state.master, stream()));
  ASSERT_OK(FillInitialValues(normal, 1, 2, 0, kCount, exp_avg, stream()));
  ASSERT_OK(FillInitialValues(uniform, 1, 3, 0, kCount, exp_avg_sq, stream()));
  ASSERT_OK_AND_ASSIGN(FusedStepPlan plan, FusedStepPlan::Create(kDevice, {extent}));
  const OptimizerStep step = TypicalStep(Optimizer::kAdamW);
  ASSERT_OK(plan.Step({step}, {}, stream()));
  Synchronize();
  for (int64_t first_row : {int64_t{0}, kRows - 32}) {
    constexpr int64_t kPart = 32 * kColumns;
    const int64_t first = first_row * kColumns;
    std::vector<float> host_gradient(kPart), master(kPart), first_moment(kPart), second_moment(kPart);
    FillInitialValues(normal, 1, 0, first, kPart, host_gradient.data());
    FillInitialValues(normal, 1, 1, first, kPart, master.data());
    FillInitialValues(normal, 1, 2, first, kPart, first_moment.data());
    FillInitialValues(uniform, 1, 3, first, kPart, second_moment.data());
    OwnedState state = {master, Moments(MomentType::kFP32, first_moment), Moments(MomentType::kFP32, second_moment)};
    OwnedPlanes planes(extent.encoding, 32, kColumns);
    FusedStep(step, host_gradient.data(), state.View(), 32, kColumns, extent.encoding, planes.row_wise.View(),
              planes.column_wise.View());
    const auto expect = [&](const std::vector<uint8_t>& expected, const void* actual, const char* what) {
      std::vector<uint8_t> bytes(expected.size());
      ASSERT_EQ(cudaMemcpy(bytes.data(), actual, bytes.size(), cudaMemcpyDeviceToHost), cudaSuccess);
      EXPECT_TRUE(SameBytes(expected, bytes)) << what << " from row " << first_row;
    };
    expect(AsBytes(state.master), extent.state.master + first, "master");
    expect(state.exp_avg.bytes(), exp_avg + first, "exp_avg");
    expect(state.exp_avg_sq.bytes(), exp_avg_sq + first, "exp_avg_sq");
    expect(planes.row_wise.data, extent.row_wise.data + first, "row-wise data");
    expect(planes.row_wise.scales, extent.row_wise.scales + first / 32, "row-wise scales");
    expect(planes.column_wise.data, extent.column_wise.data + first, "column-wise data");
    expect(planes.column_wise.scales, extent.column_wise.scales + first / 32, "column-wise scales");
  }
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

}  // namespace
}  // namespace paramshard::gpu
