#include "server/device/cpu_arithmetic.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"
#include "kernels/optim/master_remainder.h"
#include "kernels/optim/moved_state.h"
#include "kernels/optim/muon.h"
#include "kernels/optim/muon_memory.h"
#include "kernels/optim/orthogonalizer.h"
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
                                [](const ExtentTensors& extent) { return NeedsAmax(extent.encoding.format); })) {
    const MuonMemory memory = HostMuonMemory(MuonExtentsOf(tensors_));
    if (memory.updates.groups.empty()) return;
    orthogonalizer_ = MakeHostOrthogonalizer(memory.product_bytes);
    update_.resize(memory.updates.elements);
  }

  std::string products() const override { return orthogonalizer_ == nullptr ? "" : orthogonalizer_->description(); }
  int64_t muon_bytes() const override {
    const auto update_bytes = static_cast<int64_t>(update_.size() * sizeof(uint16_t));
    return orthogonalizer_ == nullptr ? 0 : update_bytes + orthogonalizer_->scratch_bytes();
  }

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
    update_of_.reset();
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

  // Steps rows of an extent, and moves their state by `distance` bytes.
  float StepRows(const OptimizerStep& step, size_t index, const ExtentRows& rows, const TensorScaling& scaling,
                 int64_t distance, const StepProgress& progress) {
    ExtentTensors extent = RowsOf(WhereItLies(index), rows.first, rows.count);
    const OptimizerState fresh = MovedBy(extent.state, distance);
    if (extent.muon.has_value()) {
      MakeUpdate(step, index, distance, progress);
      StepMuonMomentum(step, extent.gradient, extent.state.moments[MomentKind::kFirst],
                       fresh.moments[MomentKind::kFirst], extent.rows, extent.columns);
      extent.gradient = {update_.data() + rows.first * extent.columns, GradientType::kBF16};
    }
    return FusedStep(step, extent.gradient, fresh, extent.rows, extent.columns, extent.encoding, extent.row_wise,
                     extent.column_wise, scaling, distance);
  }

  // Makes the orthogonalized update of an extent, unless this step has made it. Bands that another process has done
  // have left their momentum `distance` bytes further on; that of all others is where it was.
  void MakeUpdate(const OptimizerStep& step, size_t index, int64_t distance, const StepProgress& progress) {
    if (update_of_ == index) return;
    update_of_ = index;
    const ExtentTensors& whole = tensors_[index];
    for (int n = 0; n < std::max(band_count(), 1); ++n) {
      const ExtentRows rows = RowsIn(BandAt(n, band_count(), /*forward=*/distance > 0), index);
      if (rows.count == 0) continue;
      const ExtentTensors part = RowsOf(WhereItLies(index), rows.first, rows.count);
      uint16_t* const update = update_.data() + rows.first * part.columns;
      const MutableMoment& old = part.state.moments[MomentKind::kFirst];
      if (progress.HasDone(n)) {
        const MutableMoment fresh = MovedBy(part.state, distance).moments[MomentKind::kFirst];
        MakeMuonUpdate(step, part.gradient, fresh, part.rows, part.columns, update);
      } else {
        MakeMuonUpdateFromOld(step, part.gradient, old, part.rows, part.columns, update);
      }
    }
    PARAMSHARD_CHECK(
        orthogonalizer_->Run({whole.muon->steps, step.epsilon}, MatricesOf(*whole.muon, update_.data(), whole.columns))
            .ok());
  }

  void StepInPlace(absl::Span<const std::optional<OptimizerStep>> steps, absl::Span<const TensorScaling> scalings,
                   const StepProgress& progress, std::vector<float>& amaxes) {
    if (progress.HasDone(0)) return;
    progress.MarkBegun(0);
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (!steps[i].has_value()) continue;
      amaxes[i] = StepRows(*steps[i], i, {0, tensors_[i].rows}, scalings[i], /*distance=*/0, progress);
    }
    progress.MarkDone(0);
  }

  void MoveByBands(absl::Span<const std::optional<OptimizerStep>> steps, absl::Span<const TensorScaling> scalings,
                   const StepProgress& progress, std::vector<float>& amaxes) {
    const bool forward = position() == 0;
    const int64_t distance = forward ? moves_.distance : -moves_.distance;
    for (int n = 0; n < band_count(); ++n) {
      if (progress.HasDone(n)) continue;
      progress.MarkBegun(n);
      MoveBand(BandAt(n, band_count(), forward), distance, steps, scalings, progress, amaxes);
      progress.MarkDone(n);
    }
    set_position(position() + distance);
  }

  void MoveBand(int band, int64_t distance, absl::Span<const std::optional<OptimizerStep>> steps,
                absl::Span<const TensorScaling> scalings, const StepProgress& progress, std::vector<float>& amaxes) {
    IdleState idle;
    ForEachPart(band, [&](size_t i, const ExtentRows& rows) {
      if (!steps[i].has_value()) {
        const ExtentTensors extent = WhereItLies(i);
        return idle.Add(extent.state, extent.columns, rows.first, rows.count);
      }
      idle.Cut();
      amaxes[i] = std::max(amaxes[i], StepRows(*steps[i], i, rows, scalings[i], distance, progress));
    });
    for (const IdleState::Range& range : idle.ranges()) {
      std::memcpy(range.begin + distance, range.begin, range.size_bytes);
    }
  }

  // Calls `visit` with each extent's rows in a band.
  template <typename Visit>
  void ForEachPart(int band, const Visit& visit) const {
    const size_t end = band + 1 < band_count() ? moves_.bands[band + 1].extent + 1 : tensors_.size();
    for (size_t i = moves_.bands[band].extent; i < std::min(end, tensors_.size()); ++i) {
      const ExtentRows rows = RowsIn(band, i);
      if (rows.count > 0) visit(i, rows);
    }
  }

  int band_count() const { return static_cast<int>(moves_.bands.size()); }
  ExtentRows RowsIn(int band, size_t extent) const {
    return RowsInBand(moves_.bands, band, static_cast<int64_t>(extent), tensors_[extent].rows);
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

  std::unique_ptr<Orthogonalizer> orthogonalizer_;  // null if Muon steps no extent
  // The orthogonalized update of the extent that Muon steps now, as BF16. The memory is that of the largest one.
  std::optional<size_t> update_of_;
  std::vector<uint16_t> update_;
};

}  // namespace

std::unique_ptr<ShardArithmetic> MakeCpuArithmetic(std::vector<ExtentTensors> tensors, StateMoves moves) {
  return std::make_unique<CpuShardArithmetic>(std::move(tensors), std::move(moves));
}

}  // namespace paramshard::server
