// Speed of the GPU kernels relative to the speed of the GPU's memory.
//
//   kernel_cuda_bench [--json=FILE] [PART_OF_A_NAME]
//
// Every arm alternates between a device-to-device copy and the kernel, on one stream, and both move the same number of
// bytes: those that are read plus those that are written. `of copy` is the ratio of their medians. The timed region of
// a step holds the upload of its constants.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/base/check.h"
#include "kernels/formats/codec_cuda.h"
#include "kernels/formats/format.h"
#include "kernels/formats/transpose_cuda.h"
#include "kernels/gpu/pinned_memory.h"
#include "kernels/gpu/status.h"
#include "kernels/gpu/stream.h"
#include "kernels/optim/banded_step_cuda.h"
#include "kernels/optim/fused_step_cuda.h"
#include "kernels/optim/master_remainder_cuda.h"
#include "kernels/optim/optimizers.h"
#include "kernels/random/initial_values_cuda.h"
#include "kernels/reduce/gradient_sum_cuda.h"

namespace paramshard::gpu {
namespace {

constexpr int kDevice = 0;
constexpr int kRepetitions = 15;

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}
void Check(cudaError_t error) { Check(ToStatus(error, "benchmark")); }

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Device memory that lives as long as the program.
uint8_t* Allocate(int64_t bytes) {
  void* memory = nullptr;
  Check(cudaMalloc(&memory, bytes));
  return static_cast<uint8_t*>(memory);
}

// Hands out parts of one allocation, each at a multiple of its own alignment.
class Arena {
 public:
  explicit Arena(int64_t size_bytes) : memory_(Allocate(size_bytes)), size_(size_bytes) {}

  uint8_t* Take(int64_t bytes, int64_t alignment) {
    used_ = (used_ + alignment - 1) / alignment * alignment;
    uint8_t* const taken = memory_ + used_;
    used_ += bytes;
    PARAMSHARD_CHECK(used_ <= size_);
    return taken;
  }
  void Clear() { used_ = 0; }

 private:
  uint8_t* memory_;
  int64_t size_;
  int64_t used_ = 0;
};

struct Result {
  std::string name;
  double bytes;
  double microseconds;
  double copy_microseconds;

  double share() const { return copy_microseconds / microseconds; }
  double gigabytes_per_second() const { return bytes / microseconds / 1e3; }
};

class Bench {
 public:
  Bench(std::string filter, int64_t most_bytes)
      : filter_(std::move(filter)), source_(Allocate(most_bytes / 2)), target_(Allocate(most_bytes / 2)) {
    absl::StatusOr<Stream> stream = Stream::Create(kDevice);
    Check(stream.status());
    stream_ = *std::move(stream);
    Check(cudaEventCreate(&begin_));
    Check(cudaEventCreate(&end_));
    Check(cudaMemset(source_, 0x5a, most_bytes / 2));
    std::printf("%-58s %10s %10s %8s %8s\n", "arm", "MB", "us", "GB/s", "of copy");
  }

  cudaStream_t stream() const { return stream_.get(); }
  bool Wants(const std::string& name) const { return absl::StrContains(name, filter_); }
  const std::vector<Result>& results() const { return results_; }

  void Measure(const std::string& name, int64_t bytes, const std::function<void()>& work) {
    const auto copy = [&] { Check(cudaMemcpyAsync(target_, source_, bytes / 2, cudaMemcpyDeviceToDevice, stream())); };
    std::vector<double> copies;
    std::vector<double> times;
    for (int i = -2; i < kRepetitions; ++i) {
      const double copy_time = Time(copy);
      const double time = Time(work);
      if (i < 0) continue;
      copies.push_back(copy_time);
      times.push_back(time);
    }
    const Result& result =
        results_.emplace_back(Result{name, static_cast<double>(bytes), Median(times), Median(copies)});
    std::printf("%-58s %10.1f %10.1f %8.0f %7.1f%%\n", name.c_str(), result.bytes / 1e6, result.microseconds,
                result.gigabytes_per_second(), 100 * result.share());
    std::fflush(stdout);
  }

 private:
  double Time(const std::function<void()>& work) {
    float milliseconds = 0;
    Check(cudaEventRecord(begin_, stream()));
    work();
    Check(cudaEventRecord(end_, stream()));
    Check(cudaEventSynchronize(end_));
    Check(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return 1e3 * milliseconds;
  }

  std::string filter_;
  uint8_t* source_;
  uint8_t* target_;
  Stream stream_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  std::vector<Result> results_;
};

struct Shape {
  int64_t rows;
  int64_t columns;
  bool is_vector = false;
};

// A set of extents. Vectors are BF16 for every format of matrices.
struct Model {
  std::string name;
  std::vector<Shape> shapes;
  // Planes follow each other without a gap.
  bool packed = false;
};

// The matrices of one block of Llama-3-8B, cut by rows, their dimensions changed by `odd`.
void AddBlock(Model& model, int64_t cut, int64_t odd) {
  for (const Shape& shape : {Shape{4096, 4096}, Shape{1024, 4096}, Shape{1024, 4096}, Shape{4096, 4096},
                             Shape{14336, 4096}, Shape{14336, 4096}, Shape{4096, 14336}}) {
    model.shapes.push_back({shape.rows / cut + odd, shape.columns + odd});
  }
}

Model WholeBlocks() {
  Model model = {"4 blocks", {}};
  for (int block = 0; block < 4; ++block) AddBlock(model, 1, 0);
  return model;
}

Model ShardedBlocks() {
  Model model = {"32 blocks over 8", {}};
  for (int block = 0; block < 32; ++block) AddBlock(model, 8, 0);
  return model;
}

Model BlocksWithVectors() {
  Model model = {"3 blocks, 4000 vectors", {}};
  for (int block = 0; block < 3; ++block) AddBlock(model, 1, 0);
  const size_t matrices = model.shapes.size();
  // Between the matrices, as layers have them.
  std::vector<Shape> mixed;
  for (size_t i = 0; i < matrices; ++i) {
    mixed.push_back(model.shapes[i]);
    for (size_t v = 4000 * i / matrices; v < 4000 * (i + 1) / matrices; ++v) {
      mixed.push_back({1, v % 2 == 0 ? 4096 : 128, true});
    }
  }
  model.shapes = mixed;
  return model;
}

Model OddBlocks(int64_t odd) {
  Model model = {absl::StrCat("3 blocks, sizes + ", odd), {}, true};
  for (int block = 0; block < 3; ++block) AddBlock(model, 1, odd);
  return model;
}

enum class Contents { kRandom, kZero, kSubnormal };

std::string ContentsName(Contents contents) {
  switch (contents) {
    case Contents::kRandom:
      return "";
    case Contents::kZero:
      return ", zero moments";
    case Contents::kSubnormal:
      return ", subnormal moments";
  }
  return "";
}

// The arrays of a state that steps move.
enum StateArrayKind { kMasters, kRemainders, kFirstMoments, kFirstScales, kSecondMoments, kSecondScales, kStateArrays };

struct Arenas {
  explicit Arenas(int64_t elements) : state(elements * 16), planes(elements * 4 + elements / 8), scratch(elements * 4) {
    // With room for the moves.
    for (int i = 0; i < kStateArrays; ++i) {
      const int64_t bytes = i == kFirstScales || i == kSecondScales ? elements / 8 : elements * 4;
      arrays.emplace_back(bytes + elements / 4);
    }
  }

  Arena state;
  Arena planes;
  Arena scratch;
  std::vector<Arena> arrays;
};

// How the master is stored.
enum class MasterType { kFP32, kBF16AndRemainder };

struct StepArm {
  Encoding encoding;
  MomentType exp_avg;
  MomentType exp_avg_sq;
  Contents contents = Contents::kRandom;
  MasterType master = MasterType::kFP32;
  GradientType gradients = GradientType::kFP32;
  int bands = 0;  // in which a step moves the state; 0: it stays where it is
  Optimizer optimizer = Optimizer::kAdamW;
};

std::string MomentName(MomentType type) { return absl::AsciiStrToLower(MomentTypeName(type)); }

class StepBench {
 public:
  StepBench(Bench& bench, Arenas& arenas, const Model& model, const StepArm& arm)
      : bench_(bench), arenas_(arenas), model_(model), arm_(arm) {
    arenas_.state.Clear();
    arenas_.planes.Clear();
    for (Arena& array : arenas_.arrays) array.Clear();
    for (const Shape& shape : model.shapes) Add(shape);
  }

  std::string name() const {
    const std::string moments = moment_count() == 0 ? "no moments"
                                : moment_count() == 1
                                    ? MomentName(arm_.exp_avg)
                                    : absl::StrCat(MomentName(arm_.exp_avg), "/", MomentName(arm_.exp_avg_sq));
    return absl::StrCat(TraitsOf(arm_.optimizer).name, " ", FormatName(arm_.encoding.format),
                        is_split() ? " + remainder " : " ", moments, ", ", model_.name, ContentsName(arm_.contents),
                        arm_.gradients == GradientType::kBF16 ? ", bf16 gradients" : "",
                        moves() ? absl::StrCat(", moved in ", arm_.bands, " bands") : "");
  }

  void Run() {
    Fill();
    const std::vector<BandStart> bands = Bands();
    const int64_t distance = MoveDistance(Shapes(), bands, layouts_);
    absl::StatusOr<FusedStepPlan> plan = FusedStepPlan::Create(kDevice, extents_, bands);
    Check(plan.status());
    absl::StatusOr<BandedStep> banded = BandedStep::Create(kDevice);
    Check(banded.status());
    bool forward = true;
    OptimizerStep step;
    step.learning_rate = 3e-4f;
    step.beta2 = 0.95f;
    step.weight_decay = 0.1f;
    step.optimizer = arm_.optimizer;
    step.momentum = 0.9f;
    step.bias_correction1 = BiasCorrection(step.beta1, 7);
    step.bias_correction2 = BiasCorrection(step.beta2, 7);
    const std::vector<std::optional<OptimizerStep>> steps(extents_.size(), step);
    const std::vector<TensorScaling> scalings(extents_.size(), {0.1f, 1000.0f});
    const std::vector<bool> stepped(extents_.size(), true);
    // Formats that wait for an amax have a second pass, as if the amax over all ranks were there at once.
    const bool encodes_after = EncodesAfterAmax(arm_.encoding.format);
    bench_.Measure(name(), bytes_, [&] {
      if (moves()) {
        Check(plan->BeginStep(steps, scalings, forward ? distance : -distance, bench_.stream()));
        Check(banded->Run(*plan, forward, Marks(), bench_.stream()));
        plan->SetPosition(forward ? distance : 0);
        forward = !forward;
      } else {
        Check(plan->Step(steps, scalings, bench_.stream()));
      }
      if (encodes_after) Check(plan->EncodeAfterAmax(stepped, scalings, bench_.stream()));
    });
    Check(cudaStreamSynchronize(bench_.stream()));
  }

 private:
  void Add(const Shape& shape) {
    const int64_t count = shape.rows * shape.columns;
    StepExtent extent;
    extent.rows = shape.rows;
    extent.columns = shape.columns;
    extent.encoding = shape.is_vector ? Encoding{Format::kBF16} : arm_.encoding;
    extent.gradient = {arenas_.state.Take(count * GradientBytes(arm_.gradients), 64), arm_.gradients};
    if (moment_count() > 0) {
      extent.state.moments[MomentKind::kFirst] = MomentOf(extent, arm_.exp_avg, kFirstMoments);
    }
    if (moment_count() > 1) {
      extent.state.moments[MomentKind::kSecond] = MomentOf(extent, arm_.exp_avg_sq, kSecondMoments);
    }
    extent.row_wise = PlaneOf(extent, Plane::kRowWise);
    if (HasColumnPlane(extent.encoding.format)) extent.column_wise = PlaneOf(extent, Plane::kColumnWise);
    if (is_split()) {
      // The weights are read, too.
      extent.state.remainder = reinterpret_cast<int16_t*>(TakeState(kRemainders, shape.rows, shape.columns * 2));
      bytes_ += count * (GradientBytes(arm_.gradients) + 2 * 2 + 2);
      // Weights that move are apart from the plane, which is written too.
      if (moves()) {
        extent.state.weights = reinterpret_cast<uint16_t*>(TakeState(kMasters, shape.rows, shape.columns * 2));
        bytes_ += count * 2;
      }
    } else {
      extent.state.master = reinterpret_cast<float*>(TakeState(kMasters, shape.rows, shape.columns * 4));
      bytes_ += count * (GradientBytes(arm_.gradients) + 8);
    }
    if (EncodesAfterAmax(extent.encoding.format)) bytes_ += count * 4;
    extents_.push_back(extent);
  }

  bool is_split() const { return arm_.master == MasterType::kBF16AndRemainder; }

  bool moves() const { return arm_.bands > 0; }

  int moment_count() const { return TraitsOf(arm_.optimizer).moment_count; }

  static PinnedArray<uint64_t> NewMarks() {
    absl::StatusOr<PinnedArray<uint64_t>> marks = PinnedArray<uint64_t>::Create(2 * kBandLanes);
    Check(marks.status());
    return *std::move(marks);
  }

  MutableMoment MomentOf(const StepExtent& extent, MomentType type, StateArrayKind array) {
    const int64_t row_bytes = extent.columns * MomentBytes(type);
    const int64_t row_scales = MomentScaleCount(type, 1, extent.columns) * 4;
    bytes_ += 2 * extent.rows * (row_bytes + row_scales);
    uint8_t* const first = TakeState(array, extent.rows, row_bytes);
    uint8_t* const scales = TakeState(static_cast<StateArrayKind>(array + 1), extent.rows, row_scales);
    return {first, row_scales == 0 ? nullptr : reinterpret_cast<float*>(scales), type};
  }

  // Memory of an extent's part of an array.
  uint8_t* TakeState(StateArrayKind array, int64_t rows, int64_t row_bytes) {
    if (!moves()) return arenas_.state.Take(rows * row_bytes, 64);
    uint8_t* const taken = arenas_.arrays[array].Take(rows * row_bytes, 64);
    std::vector<BandedArray::Part>& parts = layouts_[array].parts;
    if (parts.empty()) first_[array] = taken;
    parts.push_back({taken - first_[array], row_bytes});
    return taken;
  }

  std::vector<MatrixShape> Shapes() const {
    std::vector<MatrixShape> shapes;
    for (const Shape& shape : model_.shapes) shapes.push_back({shape.rows, shape.columns});
    return shapes;
  }

  std::vector<BandStart> Bands() {
    if (!moves()) return {};
    // Masters are not split, or all are.
    for (BandedArray& layout : layouts_) layout.parts.resize(model_.shapes.size());
    int64_t elements = 0;
    for (const Shape& shape : model_.shapes) elements += shape.rows * shape.columns;
    return CutIntoBands(Shapes(), elements / arm_.bands);
  }

  StepProgress Marks() const {
    return {.lanes = {StepProgress::Lane{&marks_[0], &marks_[1]}, StepProgress::Lane{&marks_[2], &marks_[3]}},
            .word_step = 1};
  }

  MutablePlane PlaneOf(const StepExtent& extent, Plane plane) {
    const int64_t alignment = model_.packed ? 1 : 64;
    const int64_t data = DataBytes(extent.encoding, extent.rows, extent.columns);
    const int64_t scales = ScaleBytes(extent.encoding, plane, extent.rows, extent.columns);
    bytes_ += data + scales;
    MutablePlane taken;
    taken.data = arenas_.planes.Take(data, alignment);
    taken.scales = arenas_.planes.Take(scales, alignment);
    taken.amax = arenas_.planes.Take(AmaxBytes(extent.encoding.format), alignment);
    return taken;
  }

  void Fill() {
    const bool random = arm_.contents == Contents::kRandom;
    const float range = random ? 1e-3f : arm_.contents == Contents::kZero ? 0.0f : 1e-39f;
    int64_t parameter = 0;
    for (const StepExtent& extent : extents_) {
      const int64_t count = extent.rows * extent.columns;
      FillMaster(extent, parameter++, count);
      FillGradients({Initializer::kNormal, 0.0f, random ? 1e-3f : 0.0f}, parameter++, count, extent.gradient);
      FillMoments({Initializer::kNormal, 0.0f, range}, parameter++, count, extent.state.moments[MomentKind::kFirst],
                  MomentScaleCount(arm_.exp_avg, extent.rows, extent.columns));
      const InitialValue squares = range == 0.0f ? InitialValue{Initializer::kZeros}
                                                 : InitialValue{Initializer::kUniform, 0.0f, random ? 1e-6f : range};
      FillMoments(squares, parameter++, count, extent.state.moments[MomentKind::kSecond],
                  MomentScaleCount(arm_.exp_avg_sq, extent.rows, extent.columns));
    }
  }

  void FillFloats(const InitialValue& value, int64_t parameter, int64_t count, float* out) {
    Check(FillInitialValues(value, 1, parameter, 0, count, out, bench_.stream()));
  }

  void FillMaster(const StepExtent& extent, int64_t parameter, int64_t count) {
    const InitialValue normal = {Initializer::kNormal, 0.0f, 0.02f};
    if (!is_split()) return FillFloats(normal, parameter, count, extent.state.master);
    arenas_.scratch.Clear();
    float* const values = reinterpret_cast<float*>(arenas_.scratch.Take(count * 4, 64));
    FillFloats(normal, parameter, count, values);
    uint16_t* const weights = moves() ? extent.state.weights : reinterpret_cast<uint16_t*>(extent.row_wise.data);
    Check(SplitMaster(values, count, weights, extent.state.remainder, bench_.stream()));
  }

  // Moments in blocks begin at zero: the untimed first steps give them realistic values.
  void FillMoments(const InitialValue& value, int64_t parameter, int64_t count, const MutableMoment& moment,
                   int64_t scale_count) {
    if (moment.data == nullptr) return;
    if (HasMomentScales(moment.type)) {
      Check(cudaMemsetAsync(moment.data, 0, count * MomentBytes(moment.type), bench_.stream()));
      return FillFloats({Initializer::kOnes}, parameter, scale_count, moment.scales);
    }
    if (moment.type == MomentType::kFP32) {
      return FillFloats(value, parameter, count, static_cast<float*>(moment.data));
    }
    FillBFloat16s(value, parameter, count, moment.data);
  }

  void FillGradients(const InitialValue& value, int64_t parameter, int64_t count, const ConstGradient& gradient) {
    void* const data = const_cast<void*>(gradient.data);
    if (gradient.type == GradientType::kFP32) return FillFloats(value, parameter, count, static_cast<float*>(data));
    FillBFloat16s(value, parameter, count, data);
  }

  void FillBFloat16s(const InitialValue& value, int64_t parameter, int64_t count, void* out) {
    arenas_.scratch.Clear();
    uint8_t* const floats = arenas_.scratch.Take(count * 4, 64);
    FillFloats(value, parameter, count, reinterpret_cast<float*>(floats));
    Check(DecodePlane({Format::kFP32}, Plane::kRowWise, {floats, nullptr}, 1, count, DecodedType::kBF16, out,
                      bench_.stream()));
  }

  Bench& bench_;
  Arenas& arenas_;
  const Model& model_;
  StepArm arm_;
  std::vector<StepExtent> extents_;
  int64_t bytes_ = 0;
  // Layouts of a state that moves.
  std::vector<BandedArray> layouts_ = std::vector<BandedArray>(kStateArrays);
  uint8_t* first_[kStateArrays] = {};
  PinnedArray<uint64_t> marks_ = NewMarks();
};

void MeasureStep(Bench& bench, Arenas& arenas, const Model& model, const StepArm& arm) {
  StepBench step(bench, arenas, model, arm);
  if (bench.Wants(step.name())) step.Run();
}

void MeasureSteps(Bench& bench, Arenas& arenas) {
  const Encoding mx = {Format::kMXFP8};
  const Encoding block = {Format::kFP8Block128x128};
  const Encoding bf16 = {Format::kBF16};
  const MomentType wide = MomentType::kFP32;
  const MomentType narrow = MomentType::kBF16;
  const Model whole = WholeBlocks();
  for (const Encoding& encoding : {mx, block, bf16}) {
    for (MomentType moments : {wide, narrow}) MeasureStep(bench, arenas, whole, {encoding, moments, moments});
  }
  for (const Encoding& encoding : {mx, block}) {
    MeasureStep(bench, arenas, whole, {encoding, narrow, wide});
    for (Contents contents : {Contents::kZero, Contents::kSubnormal}) {
      for (MomentType moments : {wide, narrow}) {
        MeasureStep(bench, arenas, whole, {encoding, moments, moments, contents});
      }
    }
  }
  MeasureStep(bench, arenas, whole, {{Format::kFP32}, wide, wide});
  const Encoding nvfp4 = {Format::kNVFP4_2D, ElementType::kE2M1};
  for (const Encoding& encoding : {Encoding{Format::kFP16}, Encoding{Format::kFP8TensorDelayed},
                                   Encoding{Format::kFP8TensorCurrent}, Encoding{Format::kMXFP8_2D}, nvfp4}) {
    for (MomentType moments : {wide, narrow}) MeasureStep(bench, arenas, whole, {encoding, moments, moments});
  }
  for (const Encoding& encoding : {mx, block, nvfp4}) {
    for (MomentType moments : {MomentType::kFP16, MomentType::kFP8}) {
      MeasureStep(bench, arenas, whole, {encoding, moments, moments});
    }
  }
  for (const Encoding& encoding : {mx, block, bf16}) {
    for (MomentType moments : {wide, narrow, MomentType::kFP8}) {
      MeasureStep(bench, arenas, whole,
                  {encoding, moments, moments, Contents::kRandom, MasterType::kFP32, GradientType::kBF16});
    }
  }
  for (MomentType moments : {wide, narrow, MomentType::kFP8}) {
    MeasureStep(bench, arenas, whole, {bf16, moments, moments, Contents::kRandom, MasterType::kBF16AndRemainder});
  }
  for (const Model& model : {ShardedBlocks(), BlocksWithVectors(), OddBlocks(4), OddBlocks(3)}) {
    for (const Encoding& encoding : {mx, block}) {
      for (MomentType moments : {wide, narrow}) MeasureStep(bench, arenas, model, {encoding, moments, moments});
    }
  }
  constexpr int kBands = 256;
  for (const Encoding& encoding : {mx, block, bf16}) {
    for (MomentType moments : {wide, narrow, MomentType::kFP8}) {
      StepArm arm = {encoding, moments, moments};
      arm.bands = kBands;
      MeasureStep(bench, arenas, whole, arm);
      if (encoding.format != Format::kBF16) continue;
      arm.master = MasterType::kBF16AndRemainder;
      MeasureStep(bench, arenas, whole, arm);
    }
  }
  for (const Model& model : {ShardedBlocks(), BlocksWithVectors(), OddBlocks(3)}) {
    StepArm arm = {mx, wide, wide};
    arm.bands = kBands;
    MeasureStep(bench, arenas, model, arm);
  }
  for (Optimizer optimizer : {Optimizer::kSgd, Optimizer::kSgdMomentum, Optimizer::kSgdNesterov, Optimizer::kLion}) {
    for (const Encoding& encoding : {mx, block, bf16}) {
      for (MomentType moments : {wide, narrow, MomentType::kFP8}) {
        if (TraitsOf(optimizer).moment_count == 0 && moments != wide) continue;
        StepArm arm = {encoding, moments, moments};
        arm.optimizer = optimizer;
        MeasureStep(bench, arenas, whole, arm);
        arm.bands = kBands;
        MeasureStep(bench, arenas, whole, arm);
      }
    }
  }
}

// Decodes random codes, which hold every kind of value.
void MeasureDecode(Bench& bench, Arenas& arenas, const Encoding& encoding, Plane plane, int64_t rows, int64_t cols) {
  arenas.state.Clear();
  arenas.planes.Clear();
  const auto take = [&](Arena& arena, int64_t bytes) {
    const int64_t floats = (bytes + 3) / 4;
    uint8_t* const taken = arena.Take(floats * 4, 64);
    Check(FillInitialValues({Initializer::kNormal, 0.0f, 1.0f}, 1, 0, 0, floats, reinterpret_cast<float*>(taken),
                            bench.stream()));
    return taken;
  };
  const int64_t data_bytes = DataBytes(encoding, rows, cols);
  const int64_t scale_bytes = ScaleBytes(encoding, plane, rows, cols);
  const ConstPlane encoded = {take(arenas.planes, data_bytes), take(arenas.planes, scale_bytes),
                              take(arenas.planes, AmaxBytes(encoding.format))};
  void* const out = arenas.state.Take(rows * cols * 4, 64);
  for (DecodedType type : {DecodedType::kFP32, DecodedType::kBF16}) {
    const bool is_wide = type == DecodedType::kFP32;
    const std::string name = absl::StrCat(
        "DecodePlane ", FormatName(encoding.format), " ", ElementTypeName(encoding.element),
        plane == Plane::kColumnWise ? " columns" : "", is_wide ? " to fp32, " : " to bf16, ", rows, " x ", cols);
    if (!bench.Wants(name)) continue;
    bench.Measure(name, data_bytes + scale_bytes + rows * cols * (is_wide ? 4 : 2),
                  [&] { Check(DecodePlane(encoding, plane, encoded, rows, cols, type, out, bench.stream())); });
  }
}

void MeasureDecodes(Bench& bench, Arenas& arenas) {
  for (const FormatTraits& traits : kFormats) {
    const Format format = traits.format;
    const Encoding encoding = {format, DefaultElement(format)};
    MeasureDecode(bench, arenas, encoding, Plane::kRowWise, 65536, 4096);
    if (HasColumnPlane(format)) MeasureDecode(bench, arenas, encoding, Plane::kColumnWise, 65536, 4096);
    MeasureDecode(bench, arenas, encoding, Plane::kRowWise, 65536, 4099);
    if (HasColumnPlane(format)) MeasureDecode(bench, arenas, encoding, Plane::kColumnWise, 65536, 4099);
  }
  for (Format format : {Format::kFP8Block128x128, Format::kMXFP8}) {
    MeasureDecode(bench, arenas, {format, ElementType::kE5M2}, Plane::kRowWise, 65536, 4096);
    MeasureDecode(bench, arenas, {format}, Plane::kRowWise, 14336, 4096);
    MeasureDecode(bench, arenas, {format}, Plane::kRowWise, 4000000, 64);
  }
}

// The bytes of a matrix of `bits` wide elements.
void MeasureTranspose(Bench& bench, Arenas& arenas, int bits, int64_t rows, int64_t cols) {
  arenas.state.Clear();
  const int64_t bytes = rows * ((cols * bits + 7) / 8);
  uint8_t* const data = arenas.state.Take((bytes + 3) / 4 * 4, 64);
  uint8_t* const out = arenas.state.Take(cols * ((rows * bits + 7) / 8), 64);
  Check(FillInitialValues({Initializer::kNormal, 0.0f, 1.0f}, 1, 0, 0, (bytes + 3) / 4, reinterpret_cast<float*>(data),
                          bench.stream()));
  const std::string name = absl::StrCat(bits == 8 ? "TransposeBytes " : "TransposeNibbles ", rows, " x ", cols);
  if (!bench.Wants(name)) return;
  const auto transpose = bits == 8 ? TransposeBytes : TransposeNibbles;
  bench.Measure(name, 2 * bytes, [&] { Check(transpose({{data, rows, cols, out}}, bench.stream())); });
}

void MeasureTransposes(Bench& bench, Arenas& arenas) {
  for (int bits : {8, 4}) {
    MeasureTranspose(bench, arenas, bits, 65536, 4096);
    MeasureTranspose(bench, arenas, bits, 14336, 14336);
    MeasureTranspose(bench, arenas, bits, 14336, 4096);
    MeasureTranspose(bench, arenas, bits, 65539, 4099);
  }
}

// The other kernels, on arrays of kRows x kColumns.
void MeasureOthers(Bench& bench, Arenas& arenas) {
  constexpr int64_t kRows = 65536;
  constexpr int64_t kColumns = 4096;
  constexpr int64_t kCount = kRows * kColumns;
  arenas.state.Clear();
  arenas.planes.Clear();
  const auto floats = [&] { return reinterpret_cast<float*>(arenas.state.Take(kCount * 4, 64)); };
  float* const a = floats();
  float* const b = floats();
  float* const c = floats();
  for (float* values : {a, b, c}) {
    Check(FillInitialValues({Initializer::kNormal, 0.0f, 1.0f}, 1, 0, 0, kCount, values, bench.stream()));
  }
  const auto measure = [&](const std::string& name, int64_t bytes, const std::function<void()>& work) {
    if (bench.Wants(name)) bench.Measure(name, bytes, work);
  };

  absl::StatusOr<SquareSummer> squares = SquareSummer::Create(kDevice, 1, kCount);
  Check(squares.status());
  GradientSumTask accumulated;
  accumulated.count = kCount;
  accumulated.accumulator = a;
  measure("SumOfSquares", kCount * 4, [&] { Check(squares->Enqueue({accumulated}, bench.stream())); });

  constexpr int kMostSources = 4;
  for (GradientType type : {GradientType::kFP32, GradientType::kBF16}) {
    const std::string type_name = type == GradientType::kFP32 ? "fp32" : "bf16";
    // Fills sources with finite numbers: counting others would take longer.
    const void* sources[kMostSources];
    for (int s = 0; s < kMostSources; ++s) {
      float* const values = s == 0 ? a : floats();
      Check(FillInitialValues({Initializer::kNormal, 0.0f, 1.0f}, 1, s, 0, kCount, values, bench.stream()));
      sources[s] = values;
      if (type == GradientType::kFP32) continue;
      void* const halves = arenas.state.Take(kCount * 2, 64);
      Check(DecodePlane({Format::kFP32}, Plane::kRowWise, {reinterpret_cast<const uint8_t*>(values)}, kRows, kColumns,
                        DecodedType::kBF16, halves, bench.stream()));
      sources[s] = halves;
    }
    for (int source_count : {1, 2, 4}) {
      GradientSumTask task;
      task.type = type;
      task.count = kCount;
      task.accumulator = c;
      std::copy_n(sources, source_count, task.sources);
      task.source_count = source_count;
      task.overwrite = true;
      const std::string name = absl::StrCat(type_name, ", ", source_count, " sources, overwrite");
      const int64_t bytes = kCount * (4 + source_count * GradientBytes(type));
      measure("SumGradients " + name, bytes, [&] { Check(SumGradients({task}, bench.stream())); });
      measure("SumGradients and squares " + name, bytes, [&] { Check(squares->Enqueue({task}, bench.stream())); });
      task.accumulator = {c, GradientType::kBF16};
      measure(absl::StrCat("SumGradients and squares ", name, ", bf16 sum"), bytes - 2 * kCount,
              [&] { Check(squares->Enqueue({task}, bench.stream())); });
    }
    GradientSumTask task;
    task.type = type;
    task.count = kCount;
    task.accumulator = c;
    std::copy_n(sources, 2, task.sources);
    task.source_count = 2;
    measure("SumGradients " + type_name + ", 2 sources", kCount * (8 + 2 * GradientBytes(type)),
            [&] { Check(SumGradients({task}, bench.stream())); });
  }

  uint8_t* const data = arenas.planes.Take(kCount, 64);
  uint8_t* const scales = arenas.planes.Take(kCount / 32, 64);
  uint8_t* const column_data = arenas.planes.Take(kCount, 64);
  uint8_t* const column_scales = arenas.planes.Take(kCount / 32, 64);
  for (Format format : {Format::kMXFP8, Format::kFP8Block128x128}) {
    const Encoding encoding = {format};
    StepExtent extent;
    extent.state.master = a;
    extent.rows = kRows;
    extent.columns = kColumns;
    extent.encoding = encoding;
    extent.row_wise = {data, scales};
    if (HasColumnPlane(format)) extent.column_wise = {column_data, column_scales};
    absl::StatusOr<FusedStepPlan> plan = FusedStepPlan::Create(kDevice, {extent});
    Check(plan.status());
    const int64_t planes = HasColumnPlane(format) ? 2 : 1;
    const int64_t scale_bytes = ScaleBytes(encoding, Plane::kRowWise, kRows, kColumns);
    measure(absl::StrCat("Encode ", FormatName(format)), kCount * 4 + planes * (kCount + scale_bytes),
            [&] { Check(plan->Encode({}, bench.stream())); });
  }
  measure("FillInitialValues normal", kCount * 4, [&] {
    Check(FillInitialValues({Initializer::kNormal, 0.0f, 1.0f}, 1, 0, 0, kCount, b, bench.stream()));
  });
}

void WriteJson(const std::string& path, const std::vector<Result>& results) {
  std::ofstream out(path);
  out << "[";
  for (size_t i = 0; i < results.size(); ++i) {
    const Result& result = results[i];
    out << (i == 0 ? "\n" : ",\n")
        << absl::StrCat(R"(  {"arm": ")", result.name, R"(", "bytes": )", result.bytes, R"(, "microseconds": )",
                        result.microseconds, R"(, "copy_microseconds": )", result.copy_microseconds, R"(, "of_copy": )",
                        result.share(), "}");
  }
  out << "\n]\n";
}

void Main(const std::string& filter, const std::string& json) {
  constexpr int64_t kMostElements = int64_t{900} << 20;
  Bench bench(filter, kMostElements * 32);
  Arenas arenas(kMostElements);
  MeasureSteps(bench, arenas);
  MeasureOthers(bench, arenas);
  MeasureDecodes(bench, arenas);
  MeasureTransposes(bench, arenas);
  if (!json.empty()) WriteJson(json, bench.results());
}

}  // namespace
}  // namespace paramshard::gpu

int main(int argc, char** argv) {
  std::string filter;
  std::string json;
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    std::string& target = absl::ConsumePrefix(&argument, "--json=") ? json : filter;
    target = std::string(argument);
  }
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::printf("skipped: no GPU here\n");
    return 0;
  }
  paramshard::gpu::Main(filter, json);
  return 0;
}
