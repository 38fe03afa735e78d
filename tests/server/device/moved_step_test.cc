// Steps that move the state against steps that leave it where it is, on a device of the kind that
// PARAMSHARD_TEST_DEVICES says.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/optim/optimizers.h"
#include "server/device/compute_device.h"
#include "tests/kernels/random_floats.h"
#include "tests/random_seed.h"
#include "tests/status_matchers.h"
#include "tests/support/environment.h"

namespace paramshard::server {
namespace {

struct ExtentSpec {
  Encoding encoding;
  int64_t rows = 0;
  int64_t columns = 0;
  MomentType exp_avg = MomentType::kFP32;
  MomentType exp_avg_sq = MomentType::kFP32;
};

// Bytes of all extents, one behind the other, with room behind them.
class Array {
 public:
  // Says where what is added begins.
  int64_t Add(int64_t rows, int64_t row_bytes) {
    size_ = (size_ + 63) / 64 * 64;
    layout_.parts.push_back({size_, row_bytes});
    return std::exchange(size_, size_ + rows * row_bytes);
  }
  void Allocate(ComputeDevice& device, int64_t room) {
    absl::StatusOr<Memory> memory = device.Allocate("test", size_ + room, Sharing::kPrivate);
    ASSERT_OK(memory.status());
    memory_ = *std::move(memory);
  }
  const BandedArray& layout() const { return layout_; }
  uint8_t* At(size_t extent) const { return memory_.data() + layout_.parts[extent].offset; }
  int64_t SizeOf(size_t extent, int64_t rows) const { return rows * layout_.parts[extent].row_bytes; }

 private:
  BandedArray layout_;
  int64_t size_ = 0;
  Memory memory_;
};

constexpr int kArrays = 5;  // masters; elements and scales of both moments

// A state and its planes, and the arithmetic on them.
class State {
 public:
  // Without a size of bands steps leave the state where it is. `has_moved`: it begins where a step would leave it.
  State(ComputeDevice* device, const std::vector<ExtentSpec>& specs, std::optional<int64_t> band_elements,
        bool has_moved = false)
      : device_(device), specs_(specs) {
    std::vector<MatrixShape> shapes;
    for (const ExtentSpec& spec : specs_) {
      shapes.push_back({spec.rows, spec.columns});
      const MomentType types[] = {spec.exp_avg, spec.exp_avg_sq};
      arrays_[0].Add(spec.rows, spec.columns * 4);
      for (int m = 0; m < 2; ++m) {
        arrays_[1 + 2 * m].Add(spec.rows, spec.columns * MomentBytes(types[m]));
        arrays_[2 + 2 * m].Add(spec.rows, MomentScaleCount(types[m], 1, spec.columns) * 4);
      }
    }
    StateMoves moves;
    if (band_elements.has_value()) {
      moves.bands = CutIntoBands(shapes, *band_elements);
      std::vector<BandedArray> layouts;
      for (const Array& array : arrays_) layouts.push_back(array.layout());
      moves.distance = MoveDistance(shapes, moves.bands, layouts);
      moves.position = has_moved ? moves.distance : 0;
    }
    for (Array& array : arrays_) array.Allocate(*device_, moves.distance);
    for (size_t i = 0; i < specs_.size(); ++i) tensors_.push_back(TensorsOf(i));
    absl::StatusOr<std::unique_ptr<ShardArithmetic>> arithmetic = device_->MakeArithmetic(tensors_, moves);
    EXPECT_OK(arithmetic.status());
    arithmetic_ = *std::move(arithmetic);
  }

  ShardArithmetic& arithmetic() { return *arithmetic_; }
  const std::vector<ExtentTensors>& tensors() const { return tensors_; }

  // Of an extent, wherever it lies now: all arrays, then the planes.
  std::vector<std::vector<uint8_t>> BytesOf(size_t extent) const {
    std::vector<std::vector<uint8_t>> bytes;
    for (const Array& array : arrays_) {
      bytes.push_back(Read(array.At(extent) + arithmetic_->position(), array.SizeOf(extent, specs_[extent].rows)));
    }
    for (const Range& plane : planes_[extent]) bytes.push_back(Read(plane.data, plane.size_bytes));
    return bytes;
  }

 private:
  struct Range {
    uint8_t* data;
    int64_t size_bytes;
  };

  std::vector<uint8_t> Read(const uint8_t* data, int64_t size_bytes) const {
    absl::StatusOr<HostView> view = device_->Read(data, size_bytes);
    EXPECT_OK(view.status());
    return {view->data(), view->data() + size_bytes};
  }

  uint8_t* Take(std::vector<Range>& ranges, int64_t size_bytes) {
    if (size_bytes == 0) return nullptr;
    absl::StatusOr<Memory> memory = device_->Allocate("test", size_bytes, Sharing::kPrivate);
    EXPECT_OK(memory.status());
    ranges.push_back({memory->data(), size_bytes});
    memories_.push_back(*std::move(memory));
    return ranges.back().data;
  }

  ExtentTensors TensorsOf(size_t i) {
    const ExtentSpec& spec = specs_[i];
    const auto moment = [&](int first, MomentType type) -> MutableMoment {
      auto* const scales = reinterpret_cast<float*>(arrays_[first + 1].At(i));
      return {arrays_[first].At(i), HasMomentScales(type) ? scales : nullptr, type};
    };
    std::vector<Range> gradient;
    ExtentTensors tensors;
    tensors.gradient = {Take(gradient, spec.rows * spec.columns * 4), GradientType::kFP32};
    tensors.state.master = reinterpret_cast<float*>(arrays_[0].At(i));
    tensors.state.moments = {{moment(1, spec.exp_avg), moment(3, spec.exp_avg_sq)}};
    tensors.rows = spec.rows;
    tensors.columns = spec.columns;
    tensors.encoding = spec.encoding;
    std::vector<Range>& planes = planes_.emplace_back();
    const auto plane = [&](Plane which) -> MutablePlane {
      return {.data = Take(planes, DataBytes(spec.encoding, spec.rows, spec.columns)),
              .scales = Take(planes, ScaleBytes(spec.encoding, which, spec.rows, spec.columns)),
              .amax = Take(planes, which == Plane::kRowWise ? AmaxBytes(spec.encoding.format) : 0)};
    };
    tensors.row_wise = plane(Plane::kRowWise);
    if (HasColumnPlane(spec.encoding.format)) tensors.column_wise = plane(Plane::kColumnWise);
    return tensors;
  }

  ComputeDevice* device_;
  std::vector<ExtentSpec> specs_;
  Array arrays_[kArrays];
  std::vector<std::vector<Range>> planes_;
  std::vector<Memory> memories_;
  std::vector<ExtentTensors> tensors_;
  std::unique_ptr<ShardArithmetic> arithmetic_;
};

class MovedStepTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(const Device id, ParseDevice(absl::StrCat(test::TestDevices(), ":0")));
    absl::StatusOr<std::vector<std::unique_ptr<ComputeDevice>>> devices = OpenDevices({id});
    if (!devices.ok() && id.kind == DeviceKind::kCuda) GTEST_SKIP() << devices.status();
    ASSERT_OK(devices.status());
    device_ = std::move(devices->front());
  }

  static std::vector<ExtentSpec> EveryFormat(RandomFloats& random) {
    std::vector<ExtentSpec> specs;
    const int64_t columns[] = {64, 96, 128, 131, 260};
    for (const FormatTraits& traits : kFormats) {
      for (const MomentType type : kMomentTypes) {
        specs.push_back({{traits.format, ElementFor(traits.format)},
                         random.Integer(1, 420),
                         columns[random.Integer(0, 4)],
                         type,
                         kMomentTypes[random.Integer(0, 3)]});
      }
    }
    return specs;
  }

  static ElementType ElementFor(Format format) {
    for (ElementType element : {ElementType::kNone, ElementType::kE4M3, ElementType::kE2M1}) {
      if (CheckEncodable({format, element}).ok()) return element;
    }
    return ElementType::kNone;
  }

  void Fill(State& state, uint64_t seed) {
    std::vector<ShardArithmetic::Initial> initials;
    for (size_t i = 0; i < state.tensors().size(); ++i) {
      initials.push_back({{Initializer::kNormal, 0.0f, 0.02f}, static_cast<int64_t>(i), 0});
    }
    ASSERT_OK(state.arithmetic().Fill(seed, initials));
  }

  void SetGradients(State& state, const std::vector<std::vector<float>>& gradients) {
    for (size_t i = 0; i < gradients.size(); ++i) {
      const auto* const bytes = reinterpret_cast<const uint8_t*>(gradients[i].data());
      ASSERT_OK(device_->Write(static_cast<uint8_t*>(state.tensors()[i].gradient.data),
                               absl::MakeConstSpan(bytes, gradients[i].size() * sizeof(float))));
    }
  }

  std::unique_ptr<ComputeDevice> device_;
};

TEST_F(MovedStepTest, GivesTheBytesOfAStepInPlace) {
  const uint64_t first = FirstSeed(1);
  for (uint64_t seed = first; seed < first + 3; ++seed) {
    SCOPED_TRACE(absl::StrCat(kSeedVariable, "=", seed));
    RandomFloats random(seed);
    const std::vector<ExtentSpec> specs = EveryFormat(random);
    State expected(device_.get(), specs, std::nullopt);
    State moved(device_.get(), specs, random.Integer(1, 60'000));
    ASSERT_NO_FATAL_FAILURE(Fill(expected, seed));
    ASSERT_NO_FATAL_FAILURE(Fill(moved, seed));
    const std::vector<TensorScaling> scalings(specs.size(), {0.1f, 1000.0f});
    for (int step = 0; step < 4; ++step) {
      std::vector<std::optional<AdamStep>> steps;
      std::vector<std::vector<float>> gradients;
      std::vector<bool> active;
      for (const ExtentSpec& spec : specs) {
        gradients.push_back(random.Normal(spec.rows * spec.columns, 0.01f));
        AdamStep adam;
        adam.learning_rate = 1e-3f;
        // In the third step only one extent takes one.
        active.push_back(step == 2 ? steps.empty() : random.Integer(0, 3) != 0);
        steps.push_back(active.back() ? std::optional<AdamStep>(adam) : std::nullopt);
      }
      for (State* state : {&expected, &moved}) ASSERT_NO_FATAL_FAILURE(SetGradients(*state, gradients));
      ASSERT_OK_AND_ASSIGN(const std::vector<float> amaxes, expected.arithmetic().Step(steps, scalings));
      EXPECT_THAT(moved.arithmetic().Step(steps, scalings), IsOkAndHolds(amaxes));
      EXPECT_EQ(moved.arithmetic().position() > 0, step % 2 == 0);
      for (State* state : {&expected, &moved}) ASSERT_OK(state->arithmetic().EncodeAfterAmax(active, scalings));
      for (size_t i = 0; i < specs.size(); ++i) {
        EXPECT_TRUE(expected.BytesOf(i) == moved.BytesOf(i))
            << "step " << step << ", extent " << i << ": " << FormatName(specs[i].encoding.format);
      }
    }
    // Planes and amaxes of a state that has moved.
    ASSERT_OK_AND_ASSIGN(const std::vector<float> amaxes, expected.arithmetic().MeasureAmaxes());
    EXPECT_THAT(moved.arithmetic().MeasureAmaxes(), IsOkAndHolds(amaxes));
    for (State* state : {&expected, &moved}) ASSERT_OK(state->arithmetic().EncodePlanes(scalings));
    for (size_t i = 0; i < specs.size(); ++i) EXPECT_TRUE(expected.BytesOf(i) == moved.BytesOf(i)) << i;
  }
}

TEST_F(MovedStepTest, AStateIsFilledWhereItLies) {
  RandomFloats random(5);
  const std::vector<ExtentSpec> specs = EveryFormat(random);
  const std::vector<TensorScaling> scalings(specs.size(), {0.1f, 1000.0f});
  State expected(device_.get(), specs, std::nullopt);
  for (const bool has_moved : {false, true}) {
    SCOPED_TRACE(has_moved);
    State moved(device_.get(), specs, 30'000, has_moved);
    ASSERT_EQ(moved.arithmetic().position() > 0, has_moved);
    for (uint64_t seed = 1; seed < 4; ++seed) {
      for (State* state : {&expected, &moved}) {
        ASSERT_NO_FATAL_FAILURE(Fill(*state, seed));
        ASSERT_OK(state->arithmetic().EncodePlanes(scalings));
      }
      for (size_t i = 0; i < specs.size(); ++i) {
        EXPECT_TRUE(expected.BytesOf(i)[0] == moved.BytesOf(i)[0]) << "master " << i;
      }
      ASSERT_OK(moved.arithmetic().Step(std::vector<std::optional<AdamStep>>(specs.size(), AdamStep()), scalings));
    }
    EXPECT_EQ(moved.arithmetic().position() > 0, !has_moved);
  }
}

// Most of a large model takes no step: all of it moves, in a few copies.
TEST_F(MovedStepTest, ManySmallExtentsWithoutAGradientMoveAlong) {
  std::vector<ExtentSpec> specs;
  for (int i = 0; i < 300; ++i) {
    specs.push_back({{Format::kBF16}, 1 + i % 5, 10 + i % 7, MomentType::kBF16, MomentType::kFP8});
  }
  State expected(device_.get(), specs, std::nullopt);
  State moved(device_.get(), specs, 2'000);
  const std::vector<TensorScaling> scalings(specs.size());
  for (State* state : {&expected, &moved}) ASSERT_NO_FATAL_FAILURE(Fill(*state, 3));
  for (const int every : {150, 2, 1'000}) {
    std::vector<std::optional<AdamStep>> steps(specs.size());
    for (size_t i = 0; i < specs.size(); i += every) steps[i] = AdamStep();
    for (State* state : {&expected, &moved}) ASSERT_OK(state->arithmetic().Step(steps, scalings));
    for (size_t i = 0; i < specs.size(); ++i) EXPECT_TRUE(expected.BytesOf(i) == moved.BytesOf(i)) << i;
  }
}

TEST_F(MovedStepTest, MovesThatAStateCannotMakeAreRefused) {
  ASSERT_OK_AND_ASSIGN(const Memory memory, device_->Allocate("test", 1 << 20, Sharing::kPrivate));
  ExtentTensors extent;
  extent.state.master = reinterpret_cast<float*>(memory.data());
  extent.rows = 300;
  extent.columns = 64;
  extent.encoding = {Format::kBF16};
  const auto refused = [&](const ExtentTensors& tensors, const StateMoves& moves, const std::string& why) {
    EXPECT_THAT(device_->MakeArithmetic({tensors}, moves).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr(why)));
  };
  refused(extent, {.bands = {{0, 0}, {0, 64}}, .distance = 1024}, "whole tiles");
  refused(extent, {.bands = {{0, 0}}, .distance = 0}, "a multiple of 512");
  refused(extent, {.bands = {{0, 0}}, .distance = -512}, "a multiple of 512");
  refused(extent, {.bands = {{0, 0}}, .distance = 513}, "a multiple of 512");
  refused(extent, {.bands = {}, .distance = 512}, "a multiple of 512");
  refused(extent, {.bands = {{0, 0}}, .distance = 1024, .position = 512}, "position 0 or 1024");
  extent.state.master = nullptr;
  extent.state.remainder = reinterpret_cast<int16_t*>(memory.data());
  extent.row_wise.data = memory.data() + (1 << 19);
  refused(extent, {.bands = {{0, 0}}, .distance = 1 << 17}, "masters without remainders");
}

TEST_F(MovedStepTest, WithoutAGradientNothingMoves) {
  State state(device_.get(), {{{Format::kBF16}, 300, 64}}, 1);
  ASSERT_NO_FATAL_FAILURE(Fill(state, 1));
  const auto before = state.BytesOf(0);
  ASSERT_OK(state.arithmetic().Step({std::nullopt}, {TensorScaling()}));
  EXPECT_EQ(state.arithmetic().position(), 0);
  EXPECT_TRUE(state.BytesOf(0) == before);
}

}  // namespace
}  // namespace paramshard::server
