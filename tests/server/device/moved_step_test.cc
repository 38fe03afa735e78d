// Steps that move the state against steps that leave it where it is, on a device of the kind that
// PARAMSHARD_TEST_DEVICES says.
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/formats/format.h"
#include "kernels/optim/muon_math.h"
#include "kernels/optim/optimizers.h"
#include "server/device/compute_device.h"
#include "tests/kernels/random_floats.h"
#include "tests/support/environment.h"
#include "tests/support/random_seed.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

struct ExtentSpec {
  Encoding encoding;
  int64_t rows = 0;
  int64_t columns = 0;
  MomentType exp_avg = MomentType::kFP32;
  MomentType exp_avg_sq = MomentType::kFP32;
  bool is_split = false;  // the master is BF16 and remainder
  bool is_muon = false;   // stepped by Muon, which keeps one moment
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
    absl::StatusOr<Memory> memory = device.Allocate("test", size_ + room, Sharing::kKept);
    ASSERT_OK(memory.status());
    memory_ = *std::move(memory);
  }
  const BandedArray& layout() const { return layout_; }
  const Memory& memory() const { return memory_; }
  // Where a band begins before the state is moved, from the array's begin.
  int64_t BeginOf(const BandStart& band) const {
    return layout_.parts[band.extent].offset + band.row * layout_.parts[band.extent].row_bytes;
  }
  int64_t size_bytes() const { return size_; }
  bool Has(size_t extent) const { return layout_.parts[extent].row_bytes > 0; }
  uint8_t* At(size_t extent) const { return memory_.data() + layout_.parts[extent].offset; }
  int64_t SizeOf(size_t extent, int64_t rows) const { return rows * layout_.parts[extent].row_bytes; }

 private:
  BandedArray layout_;
  int64_t size_ = 0;
  Memory memory_;
};

// Masters, remainders and weights; elements and scales of both moments.
enum : int { kMasters, kRemainders, kWeights, kMoments, kArrays = kMoments + 4 };

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
      arrays_[kMasters].Add(spec.rows, spec.is_split ? 0 : spec.columns * 4);
      arrays_[kRemainders].Add(spec.rows, spec.is_split ? spec.columns * 2 : 0);
      arrays_[kWeights].Add(spec.rows, spec.is_split && band_elements.has_value() ? spec.columns * 2 : 0);
      for (int m = 0; m < 2; ++m) {
        const bool has_moment = m == 0 || !spec.is_muon;
        arrays_[kMoments + 2 * m].Add(spec.rows, has_moment ? spec.columns * MomentBytes(types[m]) : 0);
        arrays_[kMoments + 2 * m + 1].Add(spec.rows, has_moment ? MomentScaleCount(types[m], 1, spec.columns) * 4 : 0);
      }
    }
    if (band_elements.has_value()) {
      moves_.bands = CutIntoBands(shapes, *band_elements);
      std::vector<BandedArray> layouts;
      for (const Array& array : arrays_) layouts.push_back(array.layout());
      moves_.distance = MoveDistance(shapes, moves_.bands, layouts);
    }
    for (Array& array : arrays_) array.Allocate(*device_, moves_.distance);
    for (size_t i = 0; i < specs_.size(); ++i) tensors_.push_back(TensorsOf(i));
    TakeOver(has_moved ? moves_.distance : 0);
  }

  // Continues like another process that finds the state there.
  void TakeOver(int64_t position) {
    StateMoves moves = moves_;
    moves.position = position;
    absl::StatusOr<std::unique_ptr<ShardArithmetic>> arithmetic = device_->MakeArithmetic(tensors_, moves);
    EXPECT_OK(arithmetic.status());
    arithmetic_ = *std::move(arithmetic);
  }

  ShardArithmetic& arithmetic() { return *arithmetic_; }
  int64_t ExpectedMuonBytes() const { return device_->MuonBytes(MuonExtentsOf(tensors_), moves_.bands); }
  const std::vector<ExtentTensors>& tensors() const { return tensors_; }
  int band_count() const { return static_cast<int>(moves_.bands.size()); }
  int64_t distance() const { return moves_.distance; }

  // The bytes of all memory: arrays, then planes.
  using Image = std::vector<std::vector<uint8_t>>;
  Image Take() const {
    Image image;
    for (const Range& range : Ranges()) image.push_back(Read(range.data, range.size_bytes));
    return image;
  }
  void Put(const Image& image) {
    const std::vector<Range> ranges = Ranges();
    for (size_t i = 0; i < ranges.size(); ++i) ASSERT_OK(device_->Write(ranges[i].data, image[i]));
  }

  // Returns an image that a step from `before` to `after` may leave when these bands are done, counted in the order of
  // the step: bands that may have begun besides hold anything. A step writes planes of `encoded` extents.
  using Counts = std::array<int, kBandLanes>;
  Image CutOff(const Image& before, const Image& after, bool forward, const Counts& done,
               const std::vector<bool>& encoded) const {
    Image image = after;
    std::copy_n(before.begin(), kArrays, image.begin());
    for (int n = 0; n < band_count(); ++n) {
      const bool is_done = n / kBandLanes < done[n % kBandLanes];
      if (!is_done) Spoil(BandAt(n, band_count(), forward), encoded, image);
      if (!is_done && !MayHaveBegun(n, done)) continue;
      for (int array = 0; array < kArrays; ++array) {
        const Range target = TargetOf(array, BandAt(n, band_count(), forward), forward);
        const int64_t first = target.data - arrays_[array].memory().data();
        const auto written = image[array].begin() + first;
        if (is_done) std::copy_n(after[array].begin() + first, target.size_bytes, written);
        if (!is_done) std::fill_n(written, target.size_bytes, 0x6b);
      }
    }
    return image;
  }

  // A band that is not done begins behind all before it but the last one.
  static bool MayHaveBegun(int n, const Counts& done) {
    for (int before = 0; before < n - 1; ++before) {
      if (before / kBandLanes >= done[before % kBandLanes]) return false;
    }
    return n / kBandLanes == done[n % kBandLanes];
  }

  // Returns true if bands can be done in that order.
  bool CanBeDone(const Counts& done) const {
    for (int lane = 0; lane < kBandLanes; ++lane) {
      const int last = (done[lane] - 1) * kBandLanes + lane;
      if (last >= band_count()) return false;
      Counts before = done;
      if (last >= 0 && --before[lane] >= 0 && !MayHaveBegun(last, before)) return false;
    }
    return true;
  }

  struct Range {
    uint8_t* data;
    int64_t size_bytes;
  };

  // Where a step leaves what an array has of a band.
  Range TargetOf(int array, int band, bool forward) const {
    const int64_t begin = arrays_[array].BeginOf(moves_.bands[band]);
    const bool is_last = band + 1 == band_count();
    const int64_t end = is_last ? arrays_[array].size_bytes() : arrays_[array].BeginOf(moves_.bands[band + 1]);
    return {arrays_[array].memory().data() + begin + (forward ? distance() : 0), end - begin};
  }

  // Returns the bytes of an extent at its present place: all arrays, then the planes. Weights without an array are the
  // first plane.
  std::vector<std::vector<uint8_t>> BytesOf(size_t extent) const {
    std::vector<std::vector<uint8_t>> bytes;
    for (const Array& array : arrays_) {
      bytes.push_back(Read(array.At(extent) + arithmetic_->position(), array.SizeOf(extent, specs_[extent].rows)));
    }
    for (const Range& plane : planes_[extent]) bytes.push_back(Read(plane.data, plane.size_bytes));
    if (specs_[extent].is_split && bytes[kWeights].empty()) bytes[kWeights] = bytes[kArrays];
    return bytes;
  }

 private:
  std::vector<Range> Ranges() const {
    std::vector<Range> ranges;
    for (const Array& array : arrays_) ranges.push_back({array.memory().data(), array.memory().size_bytes()});
    for (const std::vector<Range>& planes : planes_) ranges.insert(ranges.end(), planes.begin(), planes.end());
    return ranges;
  }

  // Takes the data of a band's planes away.
  void Spoil(int band, const std::vector<bool>& encoded, Image& image) const {
    const auto extent_count = static_cast<int64_t>(specs_.size());
    const BandStart begin = moves_.bands[band];
    const BandStart end = band + 1 < band_count() ? moves_.bands[band + 1] : BandStart{extent_count, 0};
    for (int64_t i = begin.extent; i < extent_count && i <= end.extent; ++i) {
      const int64_t first = i == begin.extent ? begin.row : 0;
      const int64_t rows = (i == end.extent ? end.row : specs_[i].rows) - first;
      if (!encoded[i] || rows == 0) continue;
      SpoilRows(i, Plane::kRowWise, tensors_[i].row_wise, first, rows, image);
      SpoilRows(i, Plane::kColumnWise, tensors_[i].column_wise, first, rows, image);
    }
  }

  void SpoilRows(size_t extent, Plane which, const MutablePlane& plane, int64_t first, int64_t rows,
                 Image& image) const {
    if (plane.data == nullptr) return;
    const std::vector<Range> ranges = Ranges();
    const auto at =
        std::find_if(ranges.begin(), ranges.end(), [&](const Range& range) { return range.data == plane.data; });
    const Encoding& encoding = specs_[extent].encoding;
    const int64_t offset = PlaneAt(encoding, which, plane, specs_[extent].columns, first).data - plane.data;
    std::fill_n(image[at - ranges.begin()].begin() + offset, DataBytes(encoding, rows, specs_[extent].columns), 0x6b);
  }

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

  // A matrix of the upper half of the rows, and two beside each other below it.
  static MuonMatrices MatricesOf(const ExtentSpec& spec) {
    const int64_t upper = spec.rows / 2;
    const int64_t lower = spec.rows - upper;
    const int64_t left = spec.columns / 3;
    MuonMatrices matrices = {.parts = {{upper, 0, lower, left}, {upper, left, lower, spec.columns - left}},
                             .steps = NewtonSchulz().steps};
    if (upper > 0) matrices.parts.push_back({0, 0, upper, spec.columns});
    return matrices;
  }

  ExtentTensors TensorsOf(size_t i) {
    const ExtentSpec& spec = specs_[i];
    const auto moment = [&](int first, MomentType type) -> MutableMoment {
      if (!arrays_[first].Has(i)) return {};
      auto* const scales = reinterpret_cast<float*>(arrays_[first + 1].At(i));
      return {arrays_[first].At(i), HasMomentScales(type) ? scales : nullptr, type};
    };
    std::vector<Range> gradient;
    ExtentTensors tensors;
    tensors.gradient = {Take(gradient, spec.rows * spec.columns * 4), GradientType::kFP32};
    if (!spec.is_split) tensors.state.master = reinterpret_cast<float*>(arrays_[kMasters].At(i));
    if (spec.is_split) tensors.state.remainder = reinterpret_cast<int16_t*>(arrays_[kRemainders].At(i));
    if (arrays_[kWeights].Has(i)) tensors.state.weights = reinterpret_cast<uint16_t*>(arrays_[kWeights].At(i));
    tensors.state.moments = {{moment(kMoments, spec.exp_avg), moment(kMoments + 2, spec.exp_avg_sq)}};
    tensors.rows = spec.rows;
    tensors.columns = spec.columns;
    tensors.encoding = spec.encoding;
    if (spec.is_muon) tensors.muon = MatricesOf(spec);
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
  StateMoves moves_;
  Array arrays_[kArrays];
  std::vector<std::vector<Range>> planes_;
  std::vector<Memory> memories_;
  std::vector<ExtentTensors> tensors_;
  std::unique_ptr<ShardArithmetic> arithmetic_;
};

// Words that a step writes, as a journal lays them out and counts.
class Words {
 public:
  static constexpr uint64_t kWord = 0xfff8ffff'00070000;
  static constexpr uint64_t kStep = uint64_t{1} - (uint64_t{1} << 32);

  explicit Words(ComputeDevice& device) {
    absl::StatusOr<Memory> memory = Memory::Allocate("words", 4096, Sharing::kKept);
    EXPECT_OK(memory.status());
    memory_ = *std::move(memory);
    absl::StatusOr<std::unique_ptr<Memory::Owner>> open = device.OpenHostMemory(memory_);
    EXPECT_OK(open.status());
    open_ = *std::move(open);
    Set({}, {});
  }

  void Set(const State::Counts& begun, const State::Counts& done) {
    for (int lane = 0; lane < kBandLanes; ++lane) {
      At(lane, false) = Progress().WordOf(begun[lane]);
      At(lane, true) = Progress().WordOf(done[lane]);
    }
  }
  State::Counts begun() const { return {CountOf(0, false), CountOf(1, false)}; }
  State::Counts done() const { return {CountOf(0, true), CountOf(1, true)}; }

  StepProgress Progress(const State::Counts& done = {}) const {
    return {.lanes = {StepProgress::Lane{&At(0, false), &At(0, true)}, StepProgress::Lane{&At(1, false), &At(1, true)}},
            .word = kWord,
            .word_step = kStep,
            .done = done};
  }

 private:
  uint64_t& At(int lane, bool done) const {
    return reinterpret_cast<uint64_t*>(memory_.data())[8 + 2 * lane + (done ? 1 : 0)];
  }
  // -1: no word at all.
  int CountOf(int lane, bool done) const {
    const uint64_t word = At(lane, done);
    const auto count = static_cast<int>(word & 0xffff);
    return word == kWord + static_cast<uint64_t>(count) * kStep ? count : -1;
  }

  Memory memory_;
  std::unique_ptr<Memory::Owner> open_;  // before the memory
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
    for (const MomentType type : kMomentTypes) {
      specs.push_back({{Format::kBF16}, random.Integer(1, 420), columns[random.Integer(0, 4)], type, type, true});
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

  // An extent of each format, whose moments are of each type, some long enough for several bands.
  std::vector<ExtentSpec> SomeOfEach(RandomFloats& random) const {
    std::vector<ExtentSpec> specs;
    const int64_t columns[] = {64, 96, 128};
    for (const FormatTraits& traits : kFormats) {
      const auto i = static_cast<int>(specs.size());
      specs.push_back({{traits.format, ElementFor(traits.format)},
                       random.Integer(1, 2) * random.Integer(1, 150),
                       columns[random.Integer(0, 2)],
                       kMomentTypes[i % 4],
                       kMomentTypes[(i + i / 4) % 4]});
    }
    specs.push_back({{Format::kBF16}, 300, 64, MomentType::kFP8, MomentType::kFP16, /*is_split=*/true});
    specs.push_back({{Format::kBF16}, 70, 100, MomentType::kBF16, MomentType::kBF16, /*is_split=*/true});
    for (const MomentType type : kMomentTypes) {
      if (device_->id().kind != DeviceKind::kCpu && HasMomentScales(type)) continue;  // not on GPUs
      specs.push_back({{Format::kFP32}, 200, 64, type, type, /*is_split=*/false, /*is_muon=*/true});
    }
    // Longer than what a step keeps of the old state: a step that was cut off has only the new momentum of some rows.
    specs.push_back({{Format::kFP32},
                     2300,
                     64,
                     MomentType::kFP32,
                     MomentType::kFP32,
                     /*is_split=*/false,
                     /*is_muon=*/true});
    specs.push_back({{Format::kFP8Block128x128, ElementType::kE4M3},
                     300,
                     131,
                     MomentType::kFP32,
                     MomentType::kFP32,
                     /*is_split=*/false,
                     /*is_muon=*/true});
    specs.push_back({{Format::kBF16},
                     259,
                     96,
                     MomentType::kBF16,
                     MomentType::kBF16,
                     /*is_split=*/true,
                     /*is_muon=*/true});
    return specs;
  }

  static OptimizerStep StepOf(const ExtentSpec& spec) {
    OptimizerStep step;
    if (!spec.is_muon) return step;
    step.optimizer = Optimizer::kMuonNesterov;
    step.momentum = 0.95f;
    step.weight_decay = 0.1f;
    step.epsilon = 1e-7f;
    SetMuonRates(1.5, step);
    return step;
  }

  // A state that has stepped once, and the next step: most extents take it.
  struct Scenario {
    std::vector<ExtentSpec> specs = {};
    std::vector<TensorScaling> scalings = {};
    std::vector<std::optional<OptimizerStep>> steps = {};
    std::vector<bool> encoded = {};  // by the step
    std::unique_ptr<State> state = nullptr;
  };
  Scenario Begin(RandomFloats& random, std::optional<int> bands, bool has_moved) {
    Scenario scenario{.specs = SomeOfEach(random)};
    int64_t elements = 0;
    std::vector<std::vector<float>> gradients;
    for (const ExtentSpec& spec : scenario.specs) {
      elements += spec.rows * spec.columns;
      gradients.push_back(random.Normal(spec.rows * spec.columns, 0.01f));
      const bool is_idle = random.Integer(0, 3) == 0;
      scenario.steps.push_back(is_idle ? std::nullopt : std::optional<OptimizerStep>(StepOf(spec)));
      scenario.encoded.push_back(!is_idle && !EncodesAfterAmax(spec.encoding.format));
      scenario.scalings.push_back({0.1f, 1000.0f});
    }
    scenario.steps.front() = OptimizerStep();
    scenario.encoded.front() = !EncodesAfterAmax(scenario.specs.front().encoding.format);
    const std::optional<int64_t> band_elements =
        bands.has_value() ? std::optional<int64_t>(elements / *bands) : std::nullopt;
    scenario.state = std::make_unique<State>(device_.get(), scenario.specs, band_elements, has_moved);
    Fill(*scenario.state, 1);
    SetGradients(*scenario.state, gradients);
    std::vector<std::optional<OptimizerStep>> all;
    for (const ExtentSpec& spec : scenario.specs) all.push_back(StepOf(spec));
    EXPECT_OK(scenario.state->arithmetic().Step(all, scenario.scalings, {}));
    EXPECT_OK(scenario.state->arithmetic().EncodePlanes(scenario.scalings));
    return scenario;
  }

  static constexpr int64_t kPage = 4096;
  static State::Range LargestTarget(const State& state, int band, bool forward) {
    State::Range largest = state.TargetOf(0, band, forward);
    for (int array = 1; array < kArrays; ++array) {
      const State::Range target = state.TargetOf(array, band, forward);
      if (target.size_bytes > largest.size_bytes) largest = target;
    }
    return largest;
  }

  static std::vector<std::vector<std::vector<uint8_t>>> BytesOf(const State& state) {
    std::vector<std::vector<std::vector<uint8_t>>> bytes;
    for (size_t i = 0; i < state.tensors().size(); ++i) bytes.push_back(state.BytesOf(i));
    return bytes;
  }

  // The step's amaxes are those that are measured afterwards.
  static void ExpectAmaxes(State& state, const std::vector<std::optional<OptimizerStep>>& steps,
                           const std::vector<float>& expected) {
    ASSERT_OK_AND_ASSIGN(const std::vector<float> measured, state.arithmetic().MeasureAmaxes());
    for (size_t i = 0; i < steps.size(); ++i) {
      if (!steps[i].has_value()) continue;
      EXPECT_EQ(measured[i], expected[i]) << i;
    }
  }

  std::unique_ptr<ComputeDevice> device_;
};

TEST_F(MovedStepTest, MemoryForMuonIsKnownBeforehand) {
  RandomFloats random(5);
  const Scenario stepped = Begin(random, 7, /*has_moved=*/false);
  State in_place(device_.get(), SomeOfEach(random), std::nullopt);
  for (State* const state : {stepped.state.get(), &in_place}) {
    EXPECT_GT(state->ExpectedMuonBytes(), 0);
    EXPECT_EQ(state->arithmetic().muon_bytes(), state->ExpectedMuonBytes());
  }
  const State adam(device_.get(), EveryFormat(random), std::nullopt);
  EXPECT_EQ(adam.ExpectedMuonBytes(), 0);
}

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
    for (State* state : {&expected, &moved}) ASSERT_OK(state->arithmetic().EncodePlanes(scalings));
    for (int step = 0; step < 4; ++step) {
      std::vector<std::optional<OptimizerStep>> steps;
      std::vector<std::vector<float>> gradients;
      std::vector<bool> active;
      for (const ExtentSpec& spec : specs) {
        gradients.push_back(random.Normal(spec.rows * spec.columns, 0.01f));
        OptimizerStep adam;
        adam.learning_rate = 1e-3f;
        // In the third step only one extent takes one.
        active.push_back(step == 2 ? steps.empty() : random.Integer(0, 3) != 0);
        steps.push_back(active.back() ? std::optional<OptimizerStep>(adam) : std::nullopt);
      }
      for (State* state : {&expected, &moved}) ASSERT_NO_FATAL_FAILURE(SetGradients(*state, gradients));
      ASSERT_OK_AND_ASSIGN(const std::vector<float> amaxes, expected.arithmetic().Step(steps, scalings, {}));
      EXPECT_THAT(moved.arithmetic().Step(steps, scalings, {}), IsOkAndHolds(amaxes));
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
        for (const int array : {kMasters, kRemainders, kWeights}) {
          EXPECT_TRUE(expected.BytesOf(i)[array] == moved.BytesOf(i)[array]) << "master " << i;
        }
      }
      ASSERT_OK(moved.arithmetic().Step(std::vector<std::optional<OptimizerStep>>(specs.size(), OptimizerStep()),
                                        scalings, {}));
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
    std::vector<std::optional<OptimizerStep>> steps(specs.size());
    for (size_t i = 0; i < specs.size(); i += every) steps[i] = OptimizerStep();
    for (State* state : {&expected, &moved}) ASSERT_OK(state->arithmetic().Step(steps, scalings, {}));
    for (size_t i = 0; i < specs.size(); ++i) EXPECT_TRUE(expected.BytesOf(i) == moved.BytesOf(i)) << i;
  }
}

TEST_F(MovedStepTest, AnotherGoesOnWithAStepThatWasCutOff) {
  const uint64_t first = FirstSeed(90);
  for (uint64_t seed = first; seed < first + 4; ++seed) {
    SCOPED_TRACE(absl::StrCat(kSeedVariable, "=", seed));
    RandomFloats random(seed);
    const Scenario scenario = Begin(random, 7, /*has_moved=*/seed % 2 == 0);
    State& state = *scenario.state;
    const int64_t position = state.arithmetic().position();
    const bool forward = position == 0;
    const State::Image before = state.Take();
    Words words(*device_);
    ASSERT_OK_AND_ASSIGN(const std::vector<float> amaxes,
                         state.arithmetic().Step(scenario.steps, scenario.scalings, words.Progress()));
    const State::Counts all = {(state.band_count() + 1) / 2, state.band_count() / 2};
    EXPECT_EQ(words.begun(), all);
    EXPECT_EQ(words.done(), all);
    const State::Image after = state.Take();
    const auto expected = BytesOf(state);
    int cuts = 0;
    for (State::Counts done = {}; done[0] <= all[0]; ++done[0]) {
      for (done[1] = 0; done[1] <= all[1]; ++done[1]) {
        if (!state.CanBeDone(done)) continue;
        ++cuts;
        SCOPED_TRACE(absl::StrCat("done: ", done[0], " and ", done[1], " of ", state.band_count()));
        ASSERT_NO_FATAL_FAILURE(state.Put(state.CutOff(before, after, forward, done, scenario.encoded)));
        state.TakeOver(position);
        words.Set(done, done);
        ASSERT_OK(state.arithmetic().Step(scenario.steps, scenario.scalings, words.Progress(done)).status());
        EXPECT_EQ(state.arithmetic().position(), forward ? state.distance() : 0);
        EXPECT_TRUE(BytesOf(state) == expected);
        EXPECT_EQ(words.begun(), all);
        EXPECT_EQ(words.done(), all);
        ASSERT_NO_FATAL_FAILURE(ExpectAmaxes(state, scenario.steps, amaxes));
      }
    }
    EXPECT_GT(cuts, 3 * state.band_count() / 2) << state.band_count();
  }
}

// The words of a step that dies at any byte say what another has to do.
TEST_F(MovedStepTest, AProcessThatDiesInABandLeavesItsMarks) {
  if (device_->id().kind != DeviceKind::kCpu) GTEST_SKIP() << "a GPU's memory has no pages to take away";
  RandomFloats random(95);
  const Scenario scenario = Begin(random, 7, /*has_moved=*/false);
  State& state = *scenario.state;
  const int64_t position = state.arithmetic().position();
  const bool forward = position == 0;
  const State::Image before = state.Take();
  ASSERT_OK(state.arithmetic().Step(scenario.steps, scenario.scalings, {}).status());
  ASSERT_OK(state.arithmetic().EncodePlanes(scenario.scalings));
  const auto expected = BytesOf(state);
  Words words(*device_);
  int deaths = 0;
  for (int n = 0; n < state.band_count(); ++n) {
    SCOPED_TRACE(n);
    const State::Range target = LargestTarget(state, BandAt(n, state.band_count(), forward), forward);
    if (target.size_bytes < 2 * kPage) continue;  // else there is a page of this band alone
    ++deaths;
    ASSERT_NO_FATAL_FAILURE(state.Put(before));
    state.TakeOver(position);
    words.Set({}, {});
    const pid_t child = fork();
    if (child == 0) {
      const rlimit no_core = {0, 0};
      setrlimit(RLIMIT_CORE, &no_core);
      signal(SIGSEGV, SIG_DFL);
      uint8_t* const middle = target.data + target.size_bytes / 2;
      mprotect(middle - reinterpret_cast<uintptr_t>(middle) % kPage, kPage, PROT_READ);
      (void)state.arithmetic().Step(scenario.steps, scenario.scalings, words.Progress());
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) << status;
    const State::Counts done = words.done();
    EXPECT_EQ(done, (State::Counts{(n + 1) / 2, n / 2}));
    State::Counts begun = done;
    ++begun[n % kBandLanes];
    EXPECT_EQ(words.begun(), begun);
    ASSERT_OK(state.arithmetic().Step(scenario.steps, scenario.scalings, words.Progress(done)).status());
    ASSERT_OK(state.arithmetic().EncodePlanes(scenario.scalings));
    EXPECT_TRUE(BytesOf(state) == expected);
  }
  EXPECT_GT(deaths, 3);
}

TEST_F(MovedStepTest, AStepInPlaceIsOneBandOfTheFirstLane) {
  RandomFloats random(96);
  const Scenario scenario = Begin(random, std::nullopt, /*has_moved=*/false);
  State& state = *scenario.state;
  Words words(*device_);
  ASSERT_OK(
      state.arithmetic()
          .Step(std::vector<std::optional<OptimizerStep>>(scenario.specs.size()), scenario.scalings, words.Progress())
          .status());
  EXPECT_EQ(words.begun(), (State::Counts{0, 0})) << "nothing took a step";
  const auto before = BytesOf(state);
  ASSERT_OK_AND_ASSIGN(const std::vector<float> amaxes,
                       state.arithmetic().Step(scenario.steps, scenario.scalings, words.Progress()));
  EXPECT_EQ(words.begun(), (State::Counts{1, 0}));
  EXPECT_EQ(words.done(), (State::Counts{1, 0}));
  const auto after = BytesOf(state);
  EXPECT_FALSE(after == before);
  state.TakeOver(0);
  words.Set({}, {});
  EXPECT_THAT(state.arithmetic().Step(scenario.steps, scenario.scalings, words.Progress({1, 0})),
              IsOkAndHolds(std::vector<float>(scenario.specs.size(), 0.0f)));
  EXPECT_TRUE(BytesOf(state) == after);
  EXPECT_EQ(words.begun(), (State::Counts{0, 0})) << "nothing was left";
  ASSERT_NO_FATAL_FAILURE(ExpectAmaxes(state, scenario.steps, amaxes));
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
  refused(extent, {.bands = {{0, 0}}, .distance = 1 << 17}, "weights apart from");
  extent.state.weights = reinterpret_cast<uint16_t*>(memory.data() + (1 << 18));
  EXPECT_OK(device_->MakeArithmetic({extent}, {.bands = {{0, 0}}, .distance = 1 << 17}).status());
}

TEST_F(MovedStepTest, WithoutAGradientNothingMoves) {
  State state(device_.get(), {{{Format::kBF16}, 300, 64}}, 1);
  ASSERT_NO_FATAL_FAILURE(Fill(state, 1));
  const auto before = state.BytesOf(0);
  ASSERT_OK(state.arithmetic().Step({std::nullopt}, {TensorScaling()}, {}));
  EXPECT_EQ(state.arithmetic().position(), 0);
  EXPECT_TRUE(state.BytesOf(0) == before);
}

}  // namespace
}  // namespace paramshard::server
