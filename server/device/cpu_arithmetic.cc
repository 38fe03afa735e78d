#include "server/device/cpu_arithmetic.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"
#include "kernels/optim/master_remainder.h"
#include "kernels/optim/moved_state.h"
#include "kernels/reduce/gradient_sum.h"

namespace paramshard::server {
namespace {

template <typename T>
T* Behind(T* array, int64_t elements) {
  return array == nullptr ? nullptr : array + elements;
}

// Returns rows of an extent, which begin at a tile, as an extent of their own.
ExtentTensors RowsOf(const ExtentTensors& whole, int64_t first, int64_t rows) {
  const int64_t before = first * whole.columns;
  ExtentTensors part = whole;
  part.rows = rows;
  part.gradient = GradientAt(whole.gradient, before);
  part.state.master = Behind(whole.state.master, before);
  part.state.remainder = Behind(whole.state.remainder, before);
  part.state.weights = Behind(whole.state.weights, before);
  for (MutableMoment& moment : part.state.moments) {
    if (moment.data != nullptr) moment = MomentAt(moment, whole.columns, first, 0);
  }
  part.row_wise = PlaneAt(whole.encoding, Plane::kRowWise, whole.row_wise, whole.columns, first);
  if (HasColumnPlane(whole.encoding.format)) {
    part.column_wise = PlaneAt(whole.encoding, Plane::kColumnWise, whole.column_wise, whole.columns, first);
  }
  return part;
}

class CpuShardArithmetic final : public ShardArithmetic {
 public:
  CpuShardArithmetic(std::vector<ExtentTensors> tensors, StateMoves moves)
      : ShardArithmetic(moves.position),
        tensors_(std::move(tensors)),
        moves_(std::move(moves)),
        needs_amax_(std::any_of(tensors_.begin(), tensors_.end(),
                                [](const ExtentTensors& extent) { return NeedsAmax(extent.encoding.format); })) {}

  absl::Status Fill(uint64_t seed, absl::Span<const Initial> initials) override {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const ExtentTensors extent = WhereItLies(i);
      if (HasRemainder(extent)) {
        FillSplit(seed, initials[i], extent);
      } else {
        FillInitialValues(initials[i].value, seed, initials[i].parameter_index, initials[i].first_element,
                          extent.elements(), extent.state.master);
      }
    }
    return absl::OkStatus();
  }

  absl::Status EncodePlanes(absl::Span<const TensorScaling> scalings, CancelCheck check_cancelled) override {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      RETURN_IF_ERROR(check_cancelled());
      Encode(i, scalings[i]);
    }
    return absl::OkStatus();
  }

  absl::Status EncodeAfterAmax(const std::vector<bool>& active, absl::Span<const TensorScaling> scalings) override {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (active[i]) Encode(i, scalings[i]);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<float>> MeasureAmaxes(CancelCheck check_cancelled) override {
    std::vector<float> amaxes(tensors_.size(), 0.0f);
    for (size_t i = 0; i < tensors_.size(); ++i) {
      RETURN_IF_ERROR(check_cancelled());
      const ExtentTensors extent = WhereItLies(i);
      if (NeedsAmax(extent.encoding.format)) amaxes[i] = Amax(extent.state.master, extent.elements());
    }
    return amaxes;
  }

  absl::StatusOr<std::vector<SquareSum>> SumSquares(const std::vector<bool>& active,
                                                    absl::Span<const SumTask> sums) override {
    ASSIGN_OR_RETURN(const std::vector<const SumTask*> sum_of, MatchSums(tensors_, active, sums));
    std::vector<SquareSum> squares(tensors_.size());
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (!active[i]) continue;
      const SumTask* const sum = sum_of[i];
      squares[i] = sum == nullptr
                       ? SumOfSquares(tensors_[i].gradient, tensors_[i].elements())
                       : SumGradientsAndSquares(sum->sources, sum->type, sum->count, sum->overwrite, sum->accumulator);
    }
    return squares;
  }

  absl::StatusOr<std::vector<float>> Step(absl::Span<const std::optional<OptimizerStep>> steps,
                                          absl::Span<const TensorScaling> scalings,
                                          const StepProgress& progress) override {
    std::vector<float> amaxes(tensors_.size(), 0.0f);
    const bool steps_any = std::any_of(steps.begin(), steps.end(), [](const auto& step) { return step.has_value(); });
    if (steps_any && moves_.bands.empty()) StepInPlace(steps, scalings, progress, amaxes);
    if (steps_any && !moves_.bands.empty()) MoveByBands(steps, scalings, progress, amaxes);
    return needs_amax_ ? amaxes : std::vector<float>();
  }

 private:
  static bool HasRemainder(const ExtentTensors& extent) { return extent.state.remainder != nullptr; }
  // The upper half of a master that has a remainder.
  static uint8_t* WeightsOf(const ExtentTensors& extent) {
    return extent.state.weights == nullptr ? extent.row_wise.data : reinterpret_cast<uint8_t*>(extent.state.weights);
  }
  static void CopyWeights(const ExtentTensors& extent) {
    if (extent.state.weights == nullptr || extent.row_wise.data == nullptr) return;
    std::memcpy(extent.row_wise.data, extent.state.weights, extent.elements() * sizeof(uint16_t));
  }

  ExtentTensors WhereItLies(size_t index) const {
    ExtentTensors extent = tensors_[index];
    extent.state = MovedBy(extent.state, position());
    return extent;
  }

  // Steps, and moves the state by `distance` bytes.
  static float StepRows(const OptimizerStep& step, const ExtentTensors& extent, const TensorScaling& scaling,
                        int64_t distance) {
    return FusedStep(step, extent.gradient, MovedBy(extent.state, distance), extent.rows, extent.columns,
                     extent.encoding, extent.row_wise, extent.column_wise, scaling, distance);
  }

  void StepInPlace(absl::Span<const std::optional<OptimizerStep>> steps, absl::Span<const TensorScaling> scalings,
                   const StepProgress& progress, std::vector<float>& amaxes) const {
    if (progress.HasDone(0)) return;
    progress.MarkBegun(0);
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (steps[i].has_value()) amaxes[i] = StepRows(*steps[i], WhereItLies(i), scalings[i], /*distance=*/0);
    }
    progress.MarkDone(0);
  }

  void MoveByBands(absl::Span<const std::optional<OptimizerStep>> steps, absl::Span<const TensorScaling> scalings,
                   const StepProgress& progress, std::vector<float>& amaxes) {
    const bool forward = position() == 0;
    const int64_t distance = forward ? moves_.distance : -moves_.distance;
    const auto band_count = static_cast<int>(moves_.bands.size());
    for (int n = 0; n < band_count; ++n) {
      if (progress.HasDone(n)) continue;
      progress.MarkBegun(n);
      MoveBand(BandAt(n, band_count, forward), distance, steps, scalings, amaxes);
      progress.MarkDone(n);
    }
    set_position(position() + distance);
  }

  void MoveBand(int band, int64_t distance, absl::Span<const std::optional<OptimizerStep>> steps,
                absl::Span<const TensorScaling> scalings, std::vector<float>& amaxes) const {
    IdleState idle;
    ForEachPart(band, [&](size_t i, int64_t first, int64_t rows) {
      const ExtentTensors extent = WhereItLies(i);
      if (!steps[i].has_value()) return idle.Add(extent.state, extent.columns, first, rows);
      idle.Cut();
      amaxes[i] = std::max(amaxes[i], StepRows(*steps[i], RowsOf(extent, first, rows), scalings[i], distance));
    });
    for (const IdleState::Range& range : idle.ranges()) {
      std::memcpy(range.begin + distance, range.begin, range.size_bytes);
    }
  }

  // Calls `visit` with each extent's rows in a band.
  template <typename Visit>
  void ForEachPart(int band, const Visit& visit) const {
    const BandStart begin = moves_.bands[band];
    const bool is_last = band + 1 == static_cast<int>(moves_.bands.size());
    const BandStart end = is_last ? BandStart{static_cast<int64_t>(tensors_.size()), 0} : moves_.bands[band + 1];
    for (int64_t i = begin.extent; i < static_cast<int64_t>(tensors_.size()) && i <= end.extent; ++i) {
      const int64_t first = i == begin.extent ? begin.row : 0;
      const int64_t behind = i == end.extent ? end.row : tensors_[i].rows;
      if (behind > first) visit(i, first, behind - first);
    }
  }

  static void FillSplit(uint64_t seed, const Initial& initial, const ExtentTensors& extent) {
    std::vector<float> values(std::min(extent.elements(), kFillElements));
    for (int64_t first = 0; first < extent.elements(); first += kFillElements) {
      const int64_t count = std::min(extent.elements() - first, kFillElements);
      FillInitialValues(initial.value, seed, initial.parameter_index, initial.first_element + first, count,
                        values.data());
      SplitMasters(values.data(), count, WeightsOf(extent) + first * sizeof(uint16_t), extent.state.remainder + first);
    }
  }

  void Encode(size_t index, const TensorScaling& scaling) const {
    const ExtentTensors extent = WhereItLies(index);
    if (HasRemainder(extent)) return CopyWeights(extent);
    paramshard::EncodePlanes(extent.encoding, extent.state.master, extent.rows, extent.columns, extent.row_wise,
                             extent.column_wise, scaling);
  }

  const std::vector<ExtentTensors> tensors_;
  const StateMoves moves_;
  const bool needs_amax_;
};

}  // namespace

std::unique_ptr<ShardArithmetic> MakeCpuArithmetic(std::vector<ExtentTensors> tensors, StateMoves moves) {
  return std::make_unique<CpuShardArithmetic>(std::move(tensors), std::move(moves));
}

}  // namespace paramshard::server
