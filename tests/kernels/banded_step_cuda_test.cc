#include "kernels/optim/banded_step_cuda.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/gpu/pinned_memory.h"
#include "kernels/optim/optimizers.h"
#include "tests/kernels/device_step.h"
#include "tests/kernels/gpu_test.h"
#include "tests/kernels/planes.h"
#include "tests/support/random_seed.h"
#include "tests/support/status_matchers.h"

namespace paramshard::gpu {
namespace {

using testing::HasSubstr;

struct ExtentSpec {
  Encoding encoding;
  int64_t rows = 0;
  int64_t columns = 0;
  MomentType exp_avg = MomentType::kFP32;
  MomentType exp_avg_sq = MomentType::kFP32;
  bool is_split = false;
  int moment_count = kMomentCount;
};

// An array of the state of all extents on the GPU, with room behind its end.
class MovedArray {
 public:
  void Add(int64_t rows, int64_t row_bytes) {
    bytes_.resize((bytes_.size() + 63) / 64 * 64);
    layout_.parts.push_back({static_cast<int64_t>(bytes_.size()), row_bytes});
    bytes_.resize(bytes_.size() + rows * row_bytes);
  }
  void Set(size_t extent, const std::vector<uint8_t>& bytes) {
    std::copy(bytes.begin(), bytes.end(), bytes_.begin() + layout_.parts[extent].offset);
  }
  void Upload(int64_t room) {
    bytes_.resize(bytes_.size() + room);
    device_ = DeviceArray<uint8_t>(bytes_);
  }

  const BandedArray& layout() const { return layout_; }
  bool Has(size_t extent) const { return layout_.parts[extent].row_bytes > 0; }
  // Returns the place of an extent before the state is moved; null if it has none.
  template <typename T>
  T* At(size_t extent) const {
    return Has(extent) ? reinterpret_cast<T*>(device_.data() + layout_.parts[extent].offset) : nullptr;
  }
  uint8_t* data() const { return device_.data(); }

  void Download() { bytes_ = device_.Download(); }
  // Compares an extent in the downloaded bytes.
  bool Holds(size_t extent, int64_t position, const std::vector<uint8_t>& expected) const {
    const auto first = bytes_.begin() + layout_.parts[extent].offset + position;
    return std::equal(expected.begin(), expected.end(), first);
  }

 private:
  BandedArray layout_;
  std::vector<uint8_t> bytes_;
  DeviceArray<uint8_t> device_;
};

// Extents whose state the GPU moves to and fro, beside the same on the host.
class MovedState {
 public:
  MovedState(const std::vector<ExtentSpec>& specs, int64_t band_elements, RandomFloats& random) : specs_(specs) {
    for (const ExtentSpec& spec : specs) Add(spec, random);
    std::vector<MatrixShape> shapes;
    for (const ExtentSpec& spec : specs) shapes.push_back({spec.rows, spec.columns});
    bands_ = CutIntoBands(shapes, band_elements);
    std::vector<BandedArray> layouts;
    for (MovedArray* array : Arrays()) layouts.push_back(array->layout());
    distance_ = MoveDistance(shapes, bands_, layouts);
    for (size_t i = 0; i < specs.size(); ++i) Fill(i);
    for (MovedArray* array : Arrays()) array->Upload(distance_);
  }

  const std::vector<BandStart>& bands() const { return bands_; }
  int band_count() const { return static_cast<int>(bands_.size()); }
  bool forward() const { return position_ == 0; }
  // Distance of the next step.
  int64_t distance() const { return forward() ? distance_ : -distance_; }
  void EndStep() { position_ += distance(); }
  int64_t position() const { return position_; }

  std::vector<StepExtent> Views() const {
    std::vector<StepExtent> views;
    for (size_t i = 0; i < specs_.size(); ++i) {
      StepExtent& view = views.emplace_back();
      view.gradient = {gradients_[i].data(), GradientType::kFP32};
      view.state = {.master = masters_.At<float>(i),
                    .remainder = remainders_.At<int16_t>(i),
                    .moments = {{{moments_[0].At<void>(i), scales_[0].At<float>(i), specs_[i].exp_avg},
                                 {moments_[1].At<void>(i), scales_[1].At<float>(i), specs_[i].exp_avg_sq}}},
                    .weights = weights_.At<uint16_t>(i)};
      expected_[i].DropMoments(view.state);
      view.rows = specs_[i].rows;
      view.columns = specs_[i].columns;
      view.encoding = specs_[i].encoding;
      view.row_wise = row_planes_[i].View();
      if (HasColumnPlane(view.encoding.format)) view.column_wise = column_planes_[i].View();
    }
    return views;
  }

  // Gives every extent a gradient, and steps the extents with a step in `steps` on the host.
  void Expect(const std::vector<std::optional<OptimizerStep>>& steps, RandomFloats& random) {
    for (size_t i = 0; i < specs_.size(); ++i) {
      const ExtentSpec& spec = specs_[i];
      const std::vector<float> gradient = random.Mixed(spec.rows * spec.columns);
      gradients_[i].Upload(gradient);
      if (!steps[i].has_value()) continue;
      OptimizerState state = expected_[i].View();
      if (spec.is_split) {
        state.master = nullptr;
        state.remainder = expected_remainders_[i].data();
      }
      OwnedPlanes& planes = expected_planes_[i];
      const float amax = FusedStep(*steps[i], gradient.data(), state, spec.rows, spec.columns, spec.encoding,
                                   planes.row_wise.View(), planes.column_wise.View(), scalings_[i]);
      if (NeedsAmax(spec.encoding.format)) scalings_[i].amax = amax;
      if (EncodesAfterAmax(spec.encoding.format)) {
        EncodePlanes(spec.encoding, expected_[i].master.data(), spec.rows, spec.columns, planes.row_wise.View(),
                     planes.column_wise.View(), scalings_[i]);
      }
    }
  }
  const std::vector<TensorScaling>& scalings() const { return scalings_; }
  int moment_count(size_t extent) const { return specs_[extent].moment_count; }

  // Overwrites half of the band's output, as if the GPU had stopped in the middle of the band.
  void Tear(int n, RandomFloats& random) {
    const int band = BandAt(n, band_count(), forward());
    for (MovedArray* array : Arrays()) {
      const int64_t begin = BeginOf(band, *array);
      const int64_t size = BeginOf(band + 1, *array) - begin;
      if (size == 0) continue;
      const int64_t first = random.Integer(0, size - 1);
      ASSERT_EQ(cudaMemset(array->data() + begin + first + position_ + distance(), 0x6b, (size - first + 1) / 2),
                cudaSuccess);
    }
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  void Check() {
    for (MovedArray* array : Arrays()) array->Download();
    for (size_t i = 0; i < specs_.size(); ++i) {
      SCOPED_TRACE(absl::StrCat("extent ", i, ": ", FormatName(specs_[i].encoding.format), " ", specs_[i].rows, " x ",
                                specs_[i].columns));
      const OwnedState& expected = expected_[i];
      if (specs_[i].is_split) {
        EXPECT_TRUE(weights_.Holds(i, position_, expected_planes_[i].row_wise.data)) << "weights";
        EXPECT_TRUE(remainders_.Holds(i, position_, AsBytes(expected_remainders_[i]))) << "remainders";
      } else {
        EXPECT_TRUE(masters_.Holds(i, position_, AsBytes(expected.master))) << "master";
      }
      const Moments* const moments[] = {&expected.exp_avg, &expected.exp_avg_sq};
      for (int m = 0; m < specs_[i].moment_count; ++m) {
        EXPECT_TRUE(moments_[m].Holds(i, position_, moments[m]->bytes())) << "moment " << m;
        EXPECT_TRUE(scales_[m].Holds(i, position_, AsBytes(moments[m]->scales()))) << "scales of moment " << m;
      }
      row_planes_[i].ExpectSame(expected_planes_[i].row_wise, "row-wise");
      column_planes_[i].ExpectSame(expected_planes_[i].column_wise, "column-wise");
    }
  }

 private:
  std::vector<MovedArray*> Arrays() {
    return {&masters_, &weights_, &remainders_, &moments_[0], &scales_[0], &moments_[1], &scales_[1]};
  }

  void Add(const ExtentSpec& spec, RandomFloats& random) {
    const int64_t count = spec.rows * spec.columns;
    masters_.Add(spec.rows, spec.is_split ? 0 : spec.columns * 4);
    weights_.Add(spec.rows, spec.is_split ? spec.columns * 2 : 0);
    remainders_.Add(spec.rows, spec.is_split ? spec.columns * 2 : 0);
    const MomentType types[] = {spec.exp_avg, spec.exp_avg_sq};
    for (int m = 0; m < kMomentCount; ++m) {
      const bool is_kept = m < spec.moment_count;
      moments_[m].Add(spec.rows, is_kept ? spec.columns * MomentBytes(types[m]) : 0);
      scales_[m].Add(spec.rows, is_kept ? MomentScaleCount(types[m], 1, spec.columns) * 4 : 0);
    }
    expected_.push_back(RandomState(random, spec.rows, spec.columns, spec.exp_avg, spec.exp_avg_sq, spec.moment_count));
    OwnedPlanes& planes = expected_planes_.emplace_back(spec.encoding, spec.rows, spec.columns);
    expected_remainders_.emplace_back(spec.is_split ? count : 0);
    if (spec.is_split) {
      SplitMasters(expected_.back().master.data(), count, planes.row_wise.data.data(),
                   expected_remainders_.back().data());
    }
    scalings_.push_back({0.0f, 37.5f});
    gradients_.emplace_back(std::vector<float>(count));
    row_planes_.emplace_back(planes.row_wise, 0);
    column_planes_.emplace_back(planes.column_wise, 0);
  }

  void Fill(size_t i) {
    const OwnedState& state = expected_[i];
    if (specs_[i].is_split) {
      weights_.Set(i, expected_planes_[i].row_wise.data);
      remainders_.Set(i, AsBytes(expected_remainders_[i]));
    } else {
      masters_.Set(i, AsBytes(state.master));
    }
    const Moments* const moments[] = {&state.exp_avg, &state.exp_avg_sq};
    for (int m = 0; m < specs_[i].moment_count; ++m) {
      moments_[m].Set(i, moments[m]->bytes());
      scales_[m].Set(i, AsBytes(moments[m]->scales()));
    }
  }

  // Behind the last band the end.
  int64_t BeginOf(int band, const MovedArray& array) const {
    const std::vector<BandedArray::Part>& parts = array.layout().parts;
    if (band == band_count()) return parts.back().offset + specs_.back().rows * parts.back().row_bytes;
    return parts[bands_[band].extent].offset + bands_[band].row * parts[bands_[band].extent].row_bytes;
  }

  std::vector<ExtentSpec> specs_;
  std::vector<BandStart> bands_;
  int64_t distance_ = 0;
  int64_t position_ = 0;
  MovedArray masters_, weights_, remainders_;
  std::array<MovedArray, 2> moments_, scales_;
  std::vector<DeviceArray<float>> gradients_;
  std::vector<DevicePlane> row_planes_, column_planes_;
  std::vector<TensorScaling> scalings_;
  std::vector<OwnedState> expected_;
  std::vector<OwnedPlanes> expected_planes_;
  std::vector<std::vector<int16_t>> expected_remainders_;
};

std::vector<ExtentSpec> EveryKind(RandomFloats& random) {
  std::vector<ExtentSpec> specs;
  const int64_t some_columns[] = {64, 96, 100, 256, 260, 192};
  for (const Encoding& encoding : AllEncodings()) {
    for (MomentType type : kMomentTypes) {
      const int64_t columns = some_columns[random.Integer(0, 5)];
      specs.push_back({encoding, random.Integer(0, 600), columns, type, type});
    }
  }
  for (MomentType type : kMomentTypes) {
    specs.push_back({{Format::kBF16}, random.Integer(1, 600), 128, type, type, /*is_split=*/true});
    specs.push_back({{Format::kMXFP8}, 300, 160, type, kMomentTypes[random.Integer(0, 3)]});
    for (int count = 0; count < kMomentCount; ++count) {
      specs.push_back({{Format::kMXFP8}, 300, 160, type, type, /*is_split=*/false, count});
    }
  }
  return specs;
}

class BandedStepTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_OK_AND_ASSIGN(words_, PinnedArray<uint64_t>::Create(2 * kBandLanes));
    for (int i = 0; i < 2 * kBandLanes; ++i) words_[i] = kWord;
  }

  // Counts in both halves of a word, like a journal.
  static constexpr uint64_t kWord = 0xfff8ffff'00070000;
  static constexpr uint64_t kStep = uint64_t{1} - (uint64_t{1} << 32);

  StepProgress Progress(const std::array<int, kBandLanes>& done = {}) const {
    return {.lanes = {StepProgress::Lane{&words_[0], &words_[1]}, StepProgress::Lane{&words_[2], &words_[3]}},
            .word = kWord,
            .word_step = kStep,
            .done = done};
  }
  std::vector<std::optional<OptimizerStep>> AnySteps(const MovedState& state, RandomFloats& random) const {
    std::vector<std::optional<OptimizerStep>> steps;
    for (size_t i = 0; i < state.scalings().size(); ++i) {
      const OptimizerStep step = TypicalStep(AnyOptimizer(random, state.moment_count(i)));
      steps.push_back(random.Integer(0, 3) == 0 ? std::nullopt : std::optional<OptimizerStep>(step));
    }
    return steps;
  }

  // Amaxes of a step that was cut off are measured again.
  void Finish(FusedStepPlan& plan, MovedState& state, const std::vector<std::optional<OptimizerStep>>& steps) {
    Synchronize();
    state.EndStep();
    plan.SetPosition(state.position());
    ASSERT_OK(plan.MeasureAmaxes(stream()));
    ASSERT_OK_AND_ASSIGN(const std::vector<float> amaxes, plan.Amaxes(stream()));
    std::vector<bool> stepped;
    for (size_t i = 0; i < steps.size(); ++i) {
      stepped.push_back(steps[i].has_value());
      if (!stepped[i]) continue;
      EXPECT_EQ(FloatBits(amaxes[i]), FloatBits(state.scalings()[i].amax)) << "amax " << i;
    }
    ASSERT_OK(plan.EncodeAfterAmax(stepped, state.scalings(), stream()));
    Synchronize();
    state.Check();
  }

  void ExpectMarks(const MovedState& state) {
    for (int lane = 0; lane < kBandLanes; ++lane) {
      const auto bands = static_cast<uint64_t>((state.band_count() + 1 - lane) / kBandLanes);
      EXPECT_EQ(words_[2 * lane], kWord + bands * kStep) << "begun of lane " << lane;
      EXPECT_EQ(words_[2 * lane + 1], kWord + bands * kStep) << "done of lane " << lane;
    }
  }

  PinnedArray<uint64_t> words_;  // begun and done of each lane
};

TEST_F(BandedStepTest, EveryStateStepsAsOnTheHostWhileItMoves) {
  const uint64_t seed = FirstSeed(61);
  SCOPED_TRACE(absl::StrCat(kSeedVariable, "=", seed));
  RandomFloats random(seed);
  MovedState state(EveryKind(random), 60'000, random);
  ASSERT_GT(state.band_count(), 10);
  ASSERT_OK_AND_ASSIGN(FusedStepPlan plan, FusedStepPlan::Create(kDevice, state.Views(), state.bands()));
  ASSERT_OK_AND_ASSIGN(BandedStep banded, BandedStep::Create(kDevice));
  for (int step = 0; step < 4; ++step) {
    SCOPED_TRACE(step);
    const auto steps = AnySteps(state, random);
    state.Expect(steps, random);
    ASSERT_OK(plan.BeginStep(steps, state.scalings(), state.distance(), stream()));
    ASSERT_OK(banded.Run(plan, state.forward(), Progress(), stream()));
    ASSERT_NO_FATAL_FAILURE(Finish(plan, state, steps));
    ExpectMarks(state);
  }
}

TEST_F(BandedStepTest, AStepThatWasCutOffIsFinished) {
  const uint64_t first = FirstSeed(70);
  for (uint64_t seed = first; seed < first + 6; ++seed) {
    SCOPED_TRACE(absl::StrCat(kSeedVariable, "=", seed));
    RandomFloats random(seed);
    MovedState state(EveryKind(random), random.Integer(0, 1) == 0 ? 1 : 200'000, random);
    ASSERT_OK_AND_ASSIGN(FusedStepPlan plan, FusedStepPlan::Create(kDevice, state.Views(), state.bands()));
    ASSERT_OK_AND_ASSIGN(BandedStep banded, BandedStep::Create(kDevice));
    for (int step = 0; step < 3; ++step) {
      const auto steps = AnySteps(state, random);
      state.Expect(steps, random);
      ASSERT_OK(plan.BeginStep(steps, state.scalings(), state.distance(), stream()));
      const auto count = static_cast<int>(random.Integer(0, state.band_count()));
      for (int n = 0; n < count; ++n) {
        ASSERT_OK(plan.StepBand(BandAt(n, state.band_count(), state.forward()), stream()));
      }
      Synchronize();
      // The last one may not have been marked, and the two behind it may have begun.
      std::array<int, kBandLanes> done = {(count + 1) / 2, count / 2};
      if (count > 0 && random.Integer(0, 1) == 0) --done[(count - 1) % kBandLanes];
      for (int lane = 0; lane < kBandLanes; ++lane) {
        const int next = done[lane] * kBandLanes + lane;
        if (next >= state.band_count() || next > count) continue;
        ASSERT_NO_FATAL_FAILURE(state.Tear(next, random));
      }
      for (int i = 0; i < 2 * kBandLanes; ++i) words_[i] = Progress().WordOf(done[i / 2]);
      ASSERT_OK(plan.BeginStep(steps, state.scalings(), state.distance(), stream()));
      ASSERT_OK(banded.Run(plan, state.forward(), Progress(done), stream()));
      ASSERT_NO_FATAL_FAILURE(Finish(plan, state, steps));
      ExpectMarks(state);
    }
  }
}

TEST_F(BandedStepTest, AStateWithoutAnElementHasNoBands) {
  RandomFloats random(62);
  MovedState state({{{Format::kBF16}, 0, 64}}, 1, random);
  ASSERT_OK_AND_ASSIGN(FusedStepPlan plan, FusedStepPlan::Create(kDevice, state.Views(), state.bands()));
  ASSERT_OK_AND_ASSIGN(BandedStep banded, BandedStep::Create(kDevice));
  ASSERT_OK(plan.BeginStep({TypicalStep(Optimizer::kAdamW)}, {}, 0, stream()));
  ASSERT_OK(banded.Run(plan, true, Progress(), stream()));
  Synchronize();
  ExpectMarks(state);
}

// A word is seen when all is there that the stream wrote before: by whichever means.
TEST_F(BandedStepTest, AMarkIsWrittenBehindWhatTheStreamDid) {
  constexpr size_t kBytes = size_t{256} << 20;
  const DeviceArray<uint8_t> memory(std::vector<uint8_t>(kBytes, 0));
  ASSERT_OK_AND_ASSIGN(const PinnedArray<uint8_t> last, PinnedArray<uint8_t>::Create(1));
  for (const BandMarks::Means means : {BandMarks::Means::kStreamOperations, BandMarks::Means::kKernels}) {
    const auto value = static_cast<uint8_t>(1 + static_cast<int>(means));
    last[0] = 0;
    const BandMarks marks(means);
    ASSERT_EQ(cudaMemsetAsync(memory.data(), value, kBytes, stream()), cudaSuccess);
    ASSERT_EQ(cudaMemcpyAsync(last.data(), memory.data() + kBytes - 1, 1, cudaMemcpyDeviceToHost, stream()),
              cudaSuccess);
    ASSERT_OK(marks.Write(&words_[0], kWord + value * kStep, stream()));
    ASSERT_OK(marks.Write(nullptr, 0, stream()));
    const std::atomic_ref<uint64_t> word(words_[0]);
    // Ends with the word, or with the stream.
    while (word.load(std::memory_order_acquire) != kWord + value * kStep && cudaStreamQuery(stream()) != cudaSuccess) {
    }
    EXPECT_EQ(std::atomic_ref<uint8_t>(last[0]).load(), value);
    Synchronize();
    EXPECT_EQ(words_[0], kWord + value * kStep);
  }
}

// A copy for each array and band where nothing between takes a step: 3 arrays of 1,000 parameters.
TEST_F(BandedStepTest, ManySmallExtentsThatTakeNoStepMoveAlong) {
  RandomFloats random(64);
  std::vector<ExtentSpec> specs;
  for (int i = 0; i < 1'000; ++i) specs.push_back({{Format::kBF16}, 1 + i % 3, 8 + i % 5});
  MovedState state(specs, 5'000, random);
  ASSERT_OK_AND_ASSIGN(FusedStepPlan plan, FusedStepPlan::Create(kDevice, state.Views(), state.bands()));
  ASSERT_OK_AND_ASSIGN(BandedStep banded, BandedStep::Create(kDevice));
  for (const size_t every : {size_t{700}, size_t{2}, size_t{1'000}}) {
    std::vector<std::optional<OptimizerStep>> steps(specs.size());
    for (size_t i = 0; i < specs.size(); i += every) steps[i] = TypicalStep(Optimizer::kAdamW);
    state.Expect(steps, random);
    ASSERT_OK(plan.BeginStep(steps, state.scalings(), state.distance(), stream()));
    ASSERT_OK(banded.Run(plan, state.forward(), {}, stream()));
    ASSERT_NO_FATAL_FAILURE(Finish(plan, state, steps));
  }
}

TEST_F(BandedStepTest, AMasterWhoseWeightsAreAPlaneDoesNotMove) {
  RandomFloats random(65);
  MovedState state({{{Format::kBF16}, 300, 64, MomentType::kFP32, MomentType::kFP32, /*is_split=*/true}}, 1, random);
  std::vector<StepExtent> extents = state.Views();
  EXPECT_OK(FusedStepPlan::Create(kDevice, extents, state.bands()).status());
  extents[0].state.weights = nullptr;
  EXPECT_OK(FusedStepPlan::Create(kDevice, extents).status());
  EXPECT_THAT(FusedStepPlan::Create(kDevice, extents, state.bands()).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("weights of its own")));
}

// In another process: a CUDA context does not survive a fork.
class BandedStepDeathTest : public BandedStepTest {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    BandedStepTest::SetUp();
  }
};

TEST_F(BandedStepDeathTest, BandsOutOfOrderAreOurBug) {
  RandomFloats random(66);
  MovedState state({{{Format::kBF16}, 600, 64}}, 1, random);
  ASSERT_GT(state.band_count(), 3);
  ASSERT_OK_AND_ASSIGN(FusedStepPlan plan, FusedStepPlan::Create(kDevice, state.Views(), state.bands()));
  const std::vector<std::optional<OptimizerStep>> steps = {TypicalStep(Optimizer::kAdamW)};
  EXPECT_DEATH((void)plan.StepBand(0, stream()), "check failed");
  EXPECT_DEATH((void)plan.BeginStep(steps, {}, -state.distance(), stream()), "check failed");
  EXPECT_DEATH((void)plan.BeginStep(steps, {}, 8, stream()), "check failed");
  EXPECT_DEATH(plan.SetPosition(8), "check failed");
  ASSERT_OK(plan.BeginStep(steps, {}, state.distance(), stream()));
  EXPECT_DEATH((void)plan.StepBand(-1, stream()), "check failed");
  EXPECT_DEATH((void)plan.StepBand(state.band_count(), stream()), "check failed");
  ASSERT_OK(plan.StepBand(2, stream()));
  EXPECT_DEATH((void)plan.StepBand(2, stream()), "check failed");
  EXPECT_DEATH((void)plan.StepBand(3, stream()), "check failed");
  ASSERT_OK(plan.StepBand(1, stream()));
  Synchronize();
  plan.SetPosition(state.distance());
  EXPECT_DEATH((void)plan.StepBand(0, stream()), "check failed");
}

TEST_F(BandedStepTest, BandsThatCutATileAreRefused) {
  RandomFloats random(63);
  MovedState state({{{Format::kMXFP8}, 300, 64}, {{Format::kBF16}, 100, 32}}, 1, random);
  for (const std::vector<BandStart>& bands : std::vector<std::vector<BandStart>>{
           {{0, 1}}, {{0, 0}, {0, 64}}, {{0, 0}, {0, 0}}, {{0, 0}, {1, 128}}, {{0, 0}, {2, 0}}, {{0, 128}}}) {
    EXPECT_THAT(FusedStepPlan::Create(kDevice, state.Views(), bands).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("whole tiles")));
  }
}

}  // namespace
}  // namespace paramshard::gpu
