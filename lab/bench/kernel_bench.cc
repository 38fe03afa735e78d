// Speed of the kernels relative to the speed of memory.
//
// Every benchmark alternates between a pass of memcpy and a pass of the kernel, on the same threads and with arrays
// larger than any cache, and reports the median of the ratios of their speeds as `of_memcpy`. Bytes are the bytes that
// a pass reads plus the bytes that it writes, for memcpy too. The kernels themselves start no threads: here each thread
// has rows of its own.
//
// MovedStep alternates between a step in place and one that moves the state (state_bands.h), and reports the median of
// the ratios of their times as `of_in_place`, with the quartiles. Each thread has a state of its own, and times are
// threads' CPU times.
//
// KeptStep alternates likewise between a step in place on private memory of the daemon and one on memory that a keeper
// holds, which is shared and has small pages, and reports `of_private`.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <deque>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "kernels/formats/codec.h"
#include "kernels/formats/format.h"
#include "kernels/optim/fused_step.h"
#include "kernels/optim/master_remainder.h"
#include "kernels/optim/moment.h"
#include "kernels/optim/state_bands.h"
#include "kernels/random/initial_values.h"
#include "kernels/reduce/gradient_sum.h"
#include "kernels/reduce/sum_of_squares.h"
#include "lab/bench/or_die.h"
#include "server/device/memory.h"

namespace paramshard {
namespace {

constexpr int64_t kRows = 8192;
constexpr int64_t kCols = 4096;
constexpr int64_t kCount = kRows * kCols;
constexpr int64_t kCopyBytes = kCount * 4;

// Rows [first, first + count) of the matrix.
struct RowRange {
  int64_t first;
  int64_t count;
};
using Work = std::function<void(RowRange)>;

// Runs the work on `threads` threads, each with an equal part of the rows. Returns seconds.
double TimedPass(int threads, const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> others;
  const int64_t rows = kRows / threads;
  for (int t = 1; t < threads; ++t) others.emplace_back(work, RowRange{t * rows, rows});
  work({0, rows});
  for (std::thread& other : others) other.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double Quantile(std::vector<double> values, double part) {
  const auto place = static_cast<std::ptrdiff_t>(part * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + place, values.end());
  return values[place];
}
double Median(const std::vector<double>& values) { return Quantile(values, 0.5); }

double ThreadSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// The same as TimedPass(), in the seconds that the thread that took most was on a processor.
double ProcessorPass(int threads, const Work& work) {
  std::atomic<double> most = 0;
  TimedPass(threads, [&](RowRange rows) {
    const double start = ThreadSeconds();
    work(rows);
    const double seconds = ThreadSeconds() - start;
    for (double known = most; known < seconds && !most.compare_exchange_weak(known, seconds);) continue;
  });
  return most;
}

// Arrays that all benchmarks share; each is written once before anything is timed.
struct Arrays {
  std::vector<uint8_t> copy_source = std::vector<uint8_t>(kCopyBytes, 1);
  std::vector<uint8_t> copy_target = std::vector<uint8_t>(kCopyBytes, 2);
  std::vector<float> master = std::vector<float>(kCount);
  std::vector<float> gradient = std::vector<float>(kCount);
  std::vector<float> exp_avg = std::vector<float>(kCount);
  std::vector<float> exp_avg_sq = std::vector<float>(kCount);
  std::vector<float> exp_avg_scales = std::vector<float>(kCount / kMomentBlockSize, 1.0f);
  std::vector<float> exp_avg_sq_scales = std::vector<float>(kCount / kMomentBlockSize, 1.0f);
  std::vector<uint8_t> row_data = std::vector<uint8_t>(kCount * 4, 3);
  std::vector<uint8_t> row_scales = std::vector<uint8_t>(kCount / 32, 4);  // at least 4 * kRows
  std::vector<uint8_t> column_data = std::vector<uint8_t>(kCount, 5);
  std::vector<uint8_t> column_scales = std::vector<uint8_t>(kCount / 32, 6);
};

Arrays& SharedArrays() {
  static Arrays& arrays = *new Arrays;
  return arrays;
}

void Copy(RowRange rows) {
  Arrays& arrays = SharedArrays();
  const int64_t row_bytes = kCopyBytes / kRows;
  std::memcpy(arrays.copy_target.data() + rows.first * row_bytes, arrays.copy_source.data() + rows.first * row_bytes,
              rows.count * row_bytes);
}

// Measures `work`, whose pass over all rows reads and writes `bytes` bytes.
void Measure(benchmark::State& state, int64_t bytes, const Work& work) {
  const int threads = static_cast<int>(state.range(0));
  TimedPass(threads, Copy);
  TimedPass(threads, work);
  std::vector<double> ratios;
  std::vector<double> nanoseconds;
  for (auto _ : state) {
    const double copy_seconds = TimedPass(threads, Copy);
    const double seconds = TimedPass(threads, work);
    state.SetIterationTime(seconds);
    ratios.push_back((static_cast<double>(bytes) / seconds) / (2.0 * static_cast<double>(kCopyBytes) / copy_seconds));
    nanoseconds.push_back(seconds * 1e9 / static_cast<double>(kCount));
  }
  state.SetBytesProcessed(state.iterations() * bytes);
  state.counters["of_memcpy"] = Median(ratios);
  state.counters["ns_per_element"] = Median(nanoseconds);
}

int64_t PlaneBytes(const Encoding& encoding) {
  const int64_t planes = HasColumnPlane(encoding.format) ? 2 : 1;
  return planes * DataBytes(encoding, kRows, kCols) + ScaleBytes(encoding, Plane::kRowWise, kRows, kCols) +
         ScaleBytes(encoding, Plane::kColumnWise, kRows, kCols);
}

// Every extent stores the scale of the whole tensor: here each thread writes its own copy.
MutablePlane RowWiseAt(const Encoding& encoding, int64_t row) {
  Arrays& arrays = SharedArrays();
  const bool of_tensor = NeedsAmax(encoding.format) && AmaxBytes(encoding.format) == 0;
  return {arrays.row_data.data() + DataBytes(encoding, row, kCols),
          arrays.row_scales.data() + (of_tensor ? 4 * row : ScaleBytes(encoding, Plane::kRowWise, row, kCols))};
}

// Scaling after earlier steps on the values of FillState().
constexpr TensorScaling kScaling = {.amax = 0.12f, .scale = 2048.0f};

MutablePlane ColumnWiseAt(const Encoding& encoding, int64_t row) {
  if (!HasColumnPlane(encoding.format)) return {};
  Arrays& arrays = SharedArrays();
  return {arrays.column_data.data() + DataBytes(encoding, row, kCols),
          arrays.column_scales.data() + ScaleBytes(encoding, Plane::kColumnWise, row, kCols)};
}

void FillNormal(std::vector<float>& values, int64_t stream, float standard_deviation) {
  FillInitialValues({Initializer::kNormal, 0.0f, standard_deviation}, 1, stream, 0, kCount, values.data());
}

// Contents of gradients and moments. Rows without a gradient keep zero or subnormal moments.
enum class Contents { kRandom, kZero, kSubnormal };

void FillState(Contents contents, Arrays& arrays) {
  FillNormal(arrays.master, 0, 0.02f);
  if (contents == Contents::kRandom) {
    FillNormal(arrays.gradient, 1, 1e-3f);
    FillNormal(arrays.exp_avg, 2, 1e-3f);
    for (int64_t i = 0; i < kCount; ++i) arrays.exp_avg_sq[i] = arrays.gradient[i] * arrays.gradient[i];
    return;
  }
  const float moment = contents == Contents::kZero ? 0.0f : 1e-43f;
  std::fill(arrays.gradient.begin(), arrays.gradient.end(), 0.0f);
  std::fill(arrays.exp_avg.begin(), arrays.exp_avg.end(), moment);
  std::fill(arrays.exp_avg_sq.begin(), arrays.exp_avg_sq.end(), moment);
}

OptimizerStep TypicalStep() {
  OptimizerStep step;
  step.weight_decay = 0.1f;
  step.bias_correction1 = BiasCorrection(step.beta1, 20);
  step.bias_correction2 = BiasCorrection(step.beta2, 20);
  return step;
}

// Stores a moment of float32 values in the memory of these values.
MutableMoment StoreMoment(MomentKind kind, MomentType type, std::vector<float>& values, std::vector<float>& scales) {
  const MutableMoment moment = {values.data(), scales.data(), type};
  if (type == MomentType::kFP32) return moment;
  std::vector<uint8_t>& staged = SharedArrays().row_data;
  EncodeMoment(kind, values.data(), kRows, kCols, {staged.data(), scales.data(), type});
  std::memcpy(values.data(), staged.data(), kCount * MomentBytes(type));
  return moment;
}

// Bytes that a step reads and writes. Formats that are encoded when the amax is known take a second pass over the
// master.
int64_t StepBytes(const Encoding& encoding, MomentType moments) {
  const int64_t moment_bytes = kCount * MomentBytes(moments) + 4 * MomentScaleCount(moments, kRows, kCols);
  const int64_t second_pass = EncodesAfterAmax(encoding.format) ? kCount * 4 : 0;
  return kCount * 12 + 4 * moment_bytes + second_pass + PlaneBytes(encoding);
}

void BM_FusedStep(benchmark::State& state, Encoding encoding, MomentType moments, Contents contents) {
  Arrays& arrays = SharedArrays();
  FillState(contents, arrays);
  const MutableMoment exp_avg = StoreMoment(MomentKind::kFirst, moments, arrays.exp_avg, arrays.exp_avg_scales);
  const MutableMoment exp_avg_sq =
      StoreMoment(MomentKind::kSecond, moments, arrays.exp_avg_sq, arrays.exp_avg_sq_scales);
  Measure(state, StepBytes(encoding, moments), [&](RowRange rows) {
    const int64_t first = rows.first * kCols;
    const OptimizerState extent = {
        .master = arrays.master.data() + first,
        .moments = {MomentAt(exp_avg, kCols, rows.first, 0), MomentAt(exp_avg_sq, kCols, rows.first, 0)}};
    const MutablePlane row_wise = RowWiseAt(encoding, rows.first);
    const MutablePlane column_wise = ColumnWiseAt(encoding, rows.first);
    benchmark::DoNotOptimize(FusedStep(TypicalStep(), arrays.gradient.data() + first, extent, rows.count, kCols,
                                       encoding, row_wise, column_wise, kScaling));
    if (!EncodesAfterAmax(encoding.format)) return;
    EncodePlanes(encoding, extent.master, rows.count, kCols, row_wise, column_wise, kScaling);
  });
}

// A BF16 parameter whose master is its plane and a remainder: both are read and written.
void BM_FusedStepWithRemainder(benchmark::State& state) {
  Arrays& arrays = SharedArrays();
  FillState(Contents::kRandom, arrays);
  const MomentType type = MomentType::kBF16;
  const MutableMoment exp_avg = StoreMoment(MomentKind::kFirst, type, arrays.exp_avg, arrays.exp_avg_scales);
  const MutableMoment exp_avg_sq = StoreMoment(MomentKind::kSecond, type, arrays.exp_avg_sq, arrays.exp_avg_sq_scales);
  std::vector<int16_t> remainders(kCount);
  SplitMasters(arrays.master.data(), kCount, arrays.row_data.data(), remainders.data());
  Measure(state, kCount * (8 + 4 + 4 * MomentBytes(type)), [&](RowRange rows) {
    const int64_t first = rows.first * kCols;
    const OptimizerState extent = {
        .remainder = remainders.data() + first,
        .moments = {MomentAt(exp_avg, kCols, rows.first, 0), MomentAt(exp_avg_sq, kCols, rows.first, 0)}};
    FusedStep(TypicalStep(), arrays.gradient.data() + first, extent, rows.count, kCols, {Format::kBF16},
              RowWiseAt({Format::kBF16}, rows.first), {});
  });
}

// The state of one thread's rows: arrays with room, which a step moves to and fro. Stays where it was made.
class MovedRows {
 public:
  MovedRows(RowRange rows, const Encoding& encoding, MomentType moments)
      : rows_(rows), encoding_(encoding), extents_({{rows.count, kCols}}) {
    bands_ = CutIntoBands(extents_, BandRule{.least_elements = 1}.BandElements(extents_));
    const int64_t moment_row = kCols * MomentBytes(moments);
    const int64_t scale_row = 4 * MomentScaleCount(moments, 1, kCols);
    const std::vector<BandedArray> arrays = {{{{0, 4 * kCols}}}, {{{0, moment_row}}}, {{{0, scale_row}}}};
    distance_ = MoveDistance(extents_, bands_, arrays);
    const auto make = [&](int64_t row_bytes) { return std::vector<uint8_t>(rows.count * row_bytes + distance_); };
    master_ = make(4 * kCols);
    Arrays& shared = SharedArrays();
    const int64_t first = rows.first * kCols;
    std::memcpy(master_.data(), shared.master.data() + first, rows.count * kCols * 4);
    const std::vector<float>* const values[] = {&shared.exp_avg, &shared.exp_avg_sq};
    for (int i = 0; i < kMomentCount; ++i) {
      moments_[i] = make(moment_row);
      scales_[i] = make(scale_row);
      views_[i] = {moments_[i].data(), reinterpret_cast<float*>(scales_[i].data()), moments};
      EncodeMoment(kMomentKinds[i].kind, values[i]->data() + first, rows.count, kCols, views_[i]);
    }
  }

  void StepInPlace() const { StepRows(0, rows_.count, 0); }
  void StepAndMove() {
    const bool forward = position_ == 0;
    const int64_t distance = forward ? distance_ : -distance_;
    const auto count = static_cast<int>(bands_.size());
    for (int n = 0; n < count; ++n) {
      const int band = BandAt(n, count, forward);
      const int64_t first = bands_[band].row;
      const int64_t behind = band + 1 < count ? bands_[band + 1].row : rows_.count;
      StepRows(first, behind - first, distance);
    }
    position_ += distance;
  }

 private:
  void StepRows(int64_t first, int64_t count, int64_t distance) const {
    const int64_t moved = position_ + distance;
    OptimizerState state = {.master =
                                reinterpret_cast<float*>(const_cast<uint8_t*>(master_.data()) + moved) + first * kCols};
    for (int i = 0; i < kMomentCount; ++i) {
      const MutableMoment at = MomentAt(views_[i], kCols, first, 0);
      auto* const scales = reinterpret_cast<uint8_t*>(at.scales);
      state.moments.values[i] = {static_cast<uint8_t*>(at.data) + moved,
                                 scales == nullptr ? nullptr : reinterpret_cast<float*>(scales + moved), at.type};
    }
    const int64_t row = rows_.first + first;
    benchmark::DoNotOptimize(FusedStep(TypicalStep(), SharedArrays().gradient.data() + row * kCols, state, count, kCols,
                                       encoding_, RowWiseAt(encoding_, row), ColumnWiseAt(encoding_, row), kScaling,
                                       distance));
  }

  const RowRange rows_;
  const Encoding encoding_;
  const std::vector<MatrixShape> extents_;
  std::vector<BandStart> bands_;
  int64_t distance_ = 0;
  int64_t position_ = 0;
  std::vector<uint8_t> master_;
  std::vector<uint8_t> moments_[kMomentCount], scales_[kMomentCount];
  MutableMoment views_[kMomentCount];
};

// EncodesAfterAmax() without the pass that follows, which is the same for both.
void BM_MovedStep(benchmark::State& state, Encoding encoding, MomentType moments) {
  const auto threads = static_cast<int>(state.range(0));
  FillState(Contents::kRandom, SharedArrays());
  std::deque<MovedRows> parts;
  const int64_t rows = kRows / threads;
  for (int t = 0; t < threads; ++t) parts.emplace_back(RowRange{t * rows, rows}, encoding, moments);
  const auto part_of = [&](RowRange range) -> MovedRows& { return parts[range.first / rows]; };
  const auto in_place = [&](RowRange range) { part_of(range).StepInPlace(); };
  const auto moved = [&](RowRange range) { part_of(range).StepAndMove(); };
  for (int warm_up = 0; warm_up < 2; ++warm_up) ProcessorPass(threads, moved);
  std::vector<double> ratios;
  std::vector<double> nanoseconds;
  for (auto _ : state) {
    const double in_place_seconds = ProcessorPass(threads, in_place);
    const double seconds = ProcessorPass(threads, moved);
    state.SetIterationTime(seconds);
    ratios.push_back(seconds / in_place_seconds);
    nanoseconds.push_back(seconds * 1e9 / static_cast<double>(kCount));
  }
  state.counters["of_in_place"] = Median(ratios);
  state.counters["lower_quarter"] = Quantile(ratios, 0.25);
  state.counters["upper_quarter"] = Quantile(ratios, 0.75);
  state.counters["ns_per_element"] = Median(nanoseconds);
}

// Input of a step with FP32 moments, in memory as the daemon allocates it.
class StepArrays {
 public:
  explicit StepArrays(server::Sharing sharing) {
    const Arrays& shared = SharedArrays();
    const std::vector<float>* const values[] = {&shared.master, &shared.gradient, &shared.exp_avg, &shared.exp_avg_sq};
    for (size_t i = 0; i < std::size(values); ++i) {
      memory_[i] = OrDie(server::Memory::Allocate("kernel_bench", kCount * 4, sharing), "allocate");
      std::memcpy(memory_[i].data(), values[i]->data(), kCount * 4);
    }
  }

  void Step(const Encoding& encoding, RowRange rows) const {
    const auto at = [&](int array) { return reinterpret_cast<float*>(memory_[array].data()) + rows.first * kCols; };
    const OptimizerState state = {.master = at(0),
                                  .moments = {MutableMoment{at(2), nullptr, MomentType::kFP32},
                                              MutableMoment{at(3), nullptr, MomentType::kFP32}}};
    benchmark::DoNotOptimize(FusedStep(TypicalStep(), at(1), state, rows.count, kCols, encoding,
                                       RowWiseAt(encoding, rows.first), ColumnWiseAt(encoding, rows.first), kScaling));
  }

 private:
  server::Memory memory_[4];
};

void BM_KeptStep(benchmark::State& state, Encoding encoding) {
  const auto threads = static_cast<int>(state.range(0));
  FillState(Contents::kRandom, SharedArrays());
  const StepArrays unshared(server::Sharing::kPrivate);
  const StepArrays kept(server::Sharing::kKept);
  const auto step = [&](const StepArrays& arrays) {
    return ProcessorPass(threads, [&](RowRange rows) { arrays.Step(encoding, rows); });
  };
  step(unshared);
  step(kept);
  std::vector<double> ratios;
  for (auto _ : state) {
    const double unshared_seconds = step(unshared);
    const double seconds = step(kept);
    state.SetIterationTime(seconds);
    ratios.push_back(seconds / unshared_seconds);
  }
  state.counters["of_private"] = Median(ratios);
  state.counters["lower_quarter"] = Quantile(ratios, 0.25);
  state.counters["upper_quarter"] = Quantile(ratios, 0.75);
}

void BM_Amax(benchmark::State& state) {
  Arrays& arrays = SharedArrays();
  FillNormal(arrays.master, 0, 0.02f);
  Measure(state, kCount * 4, [&](RowRange rows) {
    benchmark::DoNotOptimize(Amax(arrays.master.data() + rows.first * kCols, rows.count * kCols));
  });
}

void BM_EncodePlanes(benchmark::State& state, Encoding encoding) {
  Arrays& arrays = SharedArrays();
  FillNormal(arrays.master, 0, 0.02f);
  Measure(state, kCount * 4 + PlaneBytes(encoding), [&](RowRange rows) {
    EncodePlanes(encoding, arrays.master.data() + rows.first * kCols, rows.count, kCols,
                 RowWiseAt(encoding, rows.first), ColumnWiseAt(encoding, rows.first), kScaling);
  });
}

void BM_DecodePlane(benchmark::State& state, Encoding encoding, Plane plane) {
  Arrays& arrays = SharedArrays();
  FillNormal(arrays.master, 0, 0.02f);
  EncodePlanes(encoding, arrays.master.data(), kRows, kCols, RowWiseAt(encoding, 0), ColumnWiseAt(encoding, 0),
               kScaling);
  const uint8_t* amax = reinterpret_cast<const uint8_t*>(&kScaling.amax);
  Measure(state, kCount * 4 + DataBytes(encoding, kRows, kCols) + ScaleBytes(encoding, plane, kRows, kCols),
          [&](RowRange rows) {
            const MutablePlane encoded =
                plane == Plane::kRowWise ? RowWiseAt(encoding, rows.first) : ColumnWiseAt(encoding, rows.first);
            DecodePlane(encoding, plane, {encoded.data, encoded.scales, amax}, rows.count, kCols,
                        arrays.master.data() + rows.first * kCols);
          });
}

void BM_SumGradients(benchmark::State& state, GradientType type, int sources, bool overwrite) {
  Arrays& arrays = SharedArrays();
  FillState(Contents::kRandom, arrays);
  const std::vector<const std::vector<float>*> inputs = {&arrays.gradient, &arrays.exp_avg, &arrays.exp_avg_sq};
  const int64_t gradient_bytes = GradientBytes(type);
  Measure(state, kCount * (sources * gradient_bytes + (overwrite ? 4 : 8)), [&](RowRange rows) {
    std::vector<const void*> pointers;
    for (int s = 0; s < sources; ++s) {
      pointers.push_back(reinterpret_cast<const uint8_t*>(inputs[s]->data()) + rows.first * kCols * gradient_bytes);
    }
    SumGradients(pointers, type, rows.count * kCols, overwrite, arrays.master.data() + rows.first * kCols);
  });
}

void BM_SumOfSquares(benchmark::State& state) {
  Arrays& arrays = SharedArrays();
  FillNormal(arrays.gradient, 1, 1e-3f);
  Measure(state, kCount * 4, [&](RowRange rows) {
    benchmark::DoNotOptimize(SumOfSquares(arrays.gradient.data() + rows.first * kCols, rows.count * kCols));
  });
}

void BM_FillInitialValues(benchmark::State& state, Initializer kind) {
  Arrays& arrays = SharedArrays();
  Measure(state, kCount * 4, [&](RowRange rows) {
    FillInitialValues({kind, 0.0f, 0.02f}, 1, 0, rows.first * kCols, rows.count * kCols,
                      arrays.master.data() + rows.first * kCols);
  });
}

void Configure(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("threads")->Arg(1)->Arg(2)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(9);
}

std::string EncodingName(const Encoding& encoding) {
  return absl::StrCat(FormatName(encoding.format), "/", ElementTypeName(encoding.element));
}

template <typename Function, typename... Args>
void Register(const std::string& name, Function function, Args... args) {
  Configure(benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) { function(state, args...); }));
}

void RegisterAll() {
  const Encoding fp32 = {Format::kFP32};
  const Encoding bf16 = {Format::kBF16};
  const Encoding block = {Format::kFP8Block128x128};
  const Encoding mx = {Format::kMXFP8};
  const Encoding fp16 = {Format::kFP16};
  const Encoding current = {Format::kFP8TensorCurrent, ElementType::kE4M3, false};
  const Encoding delayed = {Format::kFP8TensorDelayed};
  const Encoding mx_2d = {Format::kMXFP8_2D};
  const Encoding nvfp4 = {Format::kNVFP4_2D, ElementType::kE2M1};
  for (const Encoding& encoding : {fp32, bf16, fp16, current, delayed, block, mx, mx_2d, nvfp4}) {
    const std::string name = EncodingName(encoding);
    Register("FusedStep/" + name, BM_FusedStep, encoding, MomentType::kFP32, Contents::kRandom);
    Register("FusedStep/BF16Moments/" + name, BM_FusedStep, encoding, MomentType::kBF16, Contents::kRandom);
    Register("EncodePlanes/" + name, BM_EncodePlanes, encoding);
    Register("DecodePlane/" + name, BM_DecodePlane, encoding, Plane::kRowWise);
  }
  Register("FusedStep/FP16Moments/" + EncodingName(mx), BM_FusedStep, mx, MomentType::kFP16, Contents::kRandom);
  Register("FusedStep/FP8Moments/" + EncodingName(mx), BM_FusedStep, mx, MomentType::kFP8, Contents::kRandom);
  Register("FusedStep/FP8Moments/" + EncodingName(nvfp4), BM_FusedStep, nvfp4, MomentType::kFP8, Contents::kRandom);
  Register("FusedStep/BF16Moments/Remainder", BM_FusedStepWithRemainder);
  for (const MomentType type : kMomentTypes) {
    for (const Encoding& encoding : {fp32, bf16, current, block, mx}) {
      Register(absl::StrCat("MovedStep/", MomentTypeName(type), "Moments/", EncodingName(encoding)), BM_MovedStep,
               encoding, type);
    }
  }
  for (const Encoding& encoding : {fp32, bf16, block, mx}) {
    Register("KeptStep/" + EncodingName(encoding), BM_KeptStep, encoding);
  }
  Register("Amax", BM_Amax);
  Register("FusedStep/ZeroMoments/" + EncodingName(mx), BM_FusedStep, mx, MomentType::kFP32, Contents::kZero);
  Register("FusedStep/SubnormalMoments/" + EncodingName(mx), BM_FusedStep, mx, MomentType::kFP32, Contents::kSubnormal);
  Register("DecodePlane/ColumnWise/" + EncodingName(mx), BM_DecodePlane, mx, Plane::kColumnWise);
  Register("SumGradients/FP32/1/overwrite", BM_SumGradients, GradientType::kFP32, 1, true);
  Register("SumGradients/FP32/2", BM_SumGradients, GradientType::kFP32, 2, false);
  Register("SumGradients/BF16/1/overwrite", BM_SumGradients, GradientType::kBF16, 1, true);
  Register("SumGradients/BF16/3", BM_SumGradients, GradientType::kBF16, 3, false);
  Register("SumOfSquares", BM_SumOfSquares);
  Register("FillInitialValues/uniform", BM_FillInitialValues, Initializer::kUniform);
  Register("FillInitialValues/normal", BM_FillInitialValues, Initializer::kNormal);
}

}  // namespace
}  // namespace paramshard

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  paramshard::RegisterAll();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
