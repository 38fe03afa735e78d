#include "server/state/shard.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <numeric>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/align.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"
#include "kernels/optim/master_remainder.h"
#include "kernels/optim/moment.h"

namespace paramshard::server {
namespace {

constexpr char kFrozenScratch[] = "paramshard-frozen";

// Largest number of elements that readers of whole extents hold at a time: 4 MiB in fp32.
constexpr int64_t kElementsOfAPart = 1 << 20;

int64_t Fp32Size(const ShardExtent& extent) { return extent.elements * static_cast<int64_t>(sizeof(float)); }

// Rows of a tensor as they are stored.
struct StoredRows {
  std::vector<uint8_t> elements;
  std::vector<uint8_t> rest;
};

StoredRows EncodeRows(const ParameterSpec& spec, StateTensor tensor, int64_t rows, absl::Span<const float> values) {
  StoredRows stored{.elements = std::vector<uint8_t>(rows * RowOf(spec, tensor, TensorForm::kElements).size_bytes()),
                    .rest = std::vector<uint8_t>(rows * RowOf(spec, tensor, TensorForm::kRest).size_bytes())};
  const auto count = static_cast<int64_t>(values.size());
  if (const std::optional<MomentKind> moment = MomentOf(tensor); moment.has_value()) {
    EncodeMoment(*moment, values.data(), rows, spec.columns(),
                 {stored.elements.data(), reinterpret_cast<float*>(stored.rest.data()), *MomentTypeOf(spec, *moment)});
  } else if (spec.master_type == MasterType::kBF16Remainder) {
    SplitMasters(values.data(), count, stored.elements.data(), reinterpret_cast<int16_t*>(stored.rest.data()));
  } else {
    std::memcpy(stored.elements.data(), values.data(), stored.elements.size());
  }
  return stored;
}

// One plane's memory on the host.
struct HostPlane {
  std::vector<uint8_t> data, scales, amax;

  explicit HostPlane(const PlaneViews& sizes)
      : data(sizes.data.size()), scales(sizes.scales.size()), amax(sizes.amax.size()) {}
  MutablePlane View() { return {.data = data.data(), .scales = scales.data(), .amax = amax.data()}; }
  bool SameAs(const PlaneViews& served) const {
    return served.data.bytes() == data && served.scales.bytes() == scales && served.amax.bytes() == amax;
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Shard>> Shard::Create(const ModelSpec& spec, const Layout& layout, int rank,
                                                     ComputeDevice* device, const Options& options) {
  std::unique_ptr<Shard> shard(new Shard(spec, layout, rank, device, options.moves));
  StateMemory* memory = options.memory;
  if (memory == nullptr) {
    shard->own_memory_ = std::make_unique<PrivateStateMemory>();
    memory = shard->own_memory_.get();
  }
  RETURN_IF_ERROR(shard->Allocate(*memory, options.world_rank));
  RETURN_IF_ERROR(shard->MakeArithmetic(options.position));
  if (!memory->adopted()) RETURN_IF_ERROR(shard->FillInitialValues());
  return shard;
}

Shard::Shard(const ModelSpec& spec, const Layout& layout, int rank, ComputeDevice* device, const MovePolicy& policy)
    : spec_(spec),
      layout_(layout),
      device_(device),
      placement_(ShardPlacement::Of(spec, layout, rank, policy)),
      extents_(placement_.extents),
      trainable_count_(placement_.trainable_count) {
  has_gradient_.resize(trainable_count_);
  states_.resize(extents_.size());
  int64_t parameters = 0;
  for (const UnitSpec& unit : spec.units) {
    extent_index_.emplace_back(unit.parameters.size(), -1);
    unit_begin_.push_back(parameters);
    parameters += static_cast<int64_t>(unit.parameters.size());
  }
  for (int i = 0; i < static_cast<int>(extents_.size()); ++i) {
    extent_index_[extents_[i].unit][extents_[i].parameter] = i;
    if (i >= trainable_count_ && HasMaster(extents_[i])) kept_.push_back(i);
  }
}

absl::Status Shard::Allocate(StateMemory& memory, int world_rank) {
  std::map<std::string, const Memory*> pieces;
  for (const auto& [name, size_bytes] : placement_.Pieces()) {
    ASSIGN_OR_RETURN(pieces[name], memory.Piece(PieceName(world_rank, name), size_bytes, *device_));
  }
  master_ = pieces[ShardPlacement::kMasterPiece];
  gradients_ = pieces[ShardPlacement::kGradientsPiece];
  for (const MomentTraits& moment : kMomentKinds) moments_[moment.kind] = pieces[moment.name];
  if (placement_.plane_copy_bytes > 0) {
    ASSIGN_OR_RETURN(plane_copy_, memory.HostPiece(PieceName(world_rank, ShardPlacement::kPlaneCopyPiece),
                                                   placement_.plane_copy_bytes));
  }
  ASSIGN_OR_RETURN(planes_, device_->Allocate("paramshard-planes", placement_.bytes.planes, Sharing::kReadOnly));
  return absl::OkStatus();
}

absl::Status Shard::MakeArithmetic(int64_t position) {
  std::vector<ExtentTensors> tensors;
  for (int i = 0; i < trainable_count_; ++i) tensors.push_back(Tensors(extents_[i]));
  StateMoves moves = placement_.moves;
  moves.position = position;
  ASSIGN_OR_RETURN(arithmetic_, device_->MakeArithmetic(std::move(tensors), std::move(moves)));
  if (kept_.empty()) return absl::OkStatus();
  std::vector<ExtentTensors> kept;
  for (const int i : kept_) kept.push_back(Tensors(extents_[i]));
  ASSIGN_OR_RETURN(kept_arithmetic_, device_->MakeArithmetic(std::move(kept), {}));
  return absl::OkStatus();
}

ExtentTensors Shard::Tensors(const ShardExtent& extent) const {
  const ParameterSpec& spec = Spec(extent);
  const Encoding encoding = EncodingOf(spec.encoding);
  return {.gradient = spec.trainable ? Gradient(extent) : MutableGradient(),
          .state = State(extent),
          .rows = extent.rows.size(),
          .columns = spec.columns(),
          .encoding = encoding,
          .row_wise = PlaneOf(extent, Plane::kRowWise),
          .column_wise = HasColumnPlane(encoding.format) ? PlaneOf(extent, Plane::kColumnWise) : MutablePlane{}};
}

const ShardExtent* Shard::Find(int unit, int parameter) const {
  const int index = extent_index_[unit][parameter];
  return index < 0 ? nullptr : &extents_[index];
}

// A parameter's place in the whole model keys its random numbers, so that every sharding draws the same.
ShardArithmetic::Initial Shard::InitialOf(const ShardExtent& extent) const {
  const ParameterSpec& spec = Spec(extent);
  return {.value = spec.initial_value,
          .parameter_index = PlaceOf(extent),
          .first_element = extent.rows.begin * spec.columns()};
}

absl::Status Shard::FillInitialValues() {
  std::vector<ShardArithmetic::Initial> initials;
  for (int i = 0; i < trainable_count_; ++i) initials.push_back(InitialOf(extents_[i]));
  RETURN_IF_ERROR(arithmetic_->Fill(spec_.seed, initials));
  if (!kept_.empty()) {
    std::vector<ShardArithmetic::Initial> kept;
    for (const int i : kept_) kept.push_back(InitialOf(extents_[i]));
    RETURN_IF_ERROR(kept_arithmetic_->Fill(spec_.seed, kept));
  }
  absl::MutexLock lock(&mu_);
  for (int i = trainable_count_; i < extent_count(); ++i) {
    if (!HasMaster(extents_[i])) states_[i].source = PlaneSource::kInitialValues;
  }
  return absl::OkStatus();
}

// --- Frozen extents that keep no master

// The scratch holds the master that is not kept.
absl::StatusOr<std::unique_ptr<ShardArithmetic>> Shard::MakeFrozenArithmetic(const ShardExtent& extent,
                                                                             const Memory& scratch) const {
  ExtentTensors tensors = Tensors(extent);
  tensors.state.master = reinterpret_cast<float*>(scratch.data());
  return device_->MakeArithmetic({tensors}, {});
}

absl::StatusOr<Shard::FrozenWork> Shard::LoadFrozen(int index) const {
  const ShardExtent& extent = extents_[index];
  const ExtentState& state = states_[index];
  FrozenWork work;
  const Memory* scratch = &room_;
  if (state.arithmetic == nullptr) {
    ASSIGN_OR_RETURN(work.scratch, device_->Allocate(kFrozenScratch, Fp32Size(extent), Sharing::kPrivate));
    ASSIGN_OR_RETURN(work.own, MakeFrozenArithmetic(extent, work.scratch));
    scratch = &work.scratch;
  }
  work.arithmetic = state.arithmetic == nullptr ? work.own.get() : state.arithmetic.get();
  switch (state.source) {
    case PlaneSource::kNone:
      break;
    case PlaneSource::kInitialValues:
      RETURN_IF_ERROR(work.arithmetic->Fill(spec_.seed, {InitialOf(extent)}));
      break;
    case PlaneSource::kWrittenRows:
      RETURN_IF_ERROR(device_->Write(
          scratch->data(),
          absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(state.written_rows.get()), Fp32Size(extent))));
      break;
  }
  return work;
}

absl::Status Shard::MakeRoom(absl::Span<const ShardExtent* const> extents) {
  absl::MutexLock lock(&mu_);
  int64_t largest = 0;
  for (const ShardExtent* const extent : extents) {
    if (!HasMaster(*extent)) largest = std::max(largest, Fp32Size(*extent));
  }
  if (largest == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(room_, device_->Allocate(kFrozenScratch, largest, Sharing::kPrivate));
  for (const ShardExtent* const extent : extents) {
    if (HasMaster(*extent)) continue;
    ExtentState& state = states_[IndexOf(*extent)];
    RETURN_IF_ERROR(MakeRoomForRows(*extent, state));
    ASSIGN_OR_RETURN(state.arithmetic, MakeFrozenArithmetic(*extent, room_));
  }
  return absl::OkStatus();
}

absl::Status Shard::MakeRoomForRows(const ShardExtent& extent, ExtentState& state) const {
  if (state.written_rows == nullptr) state.written_rows.reset(new (std::nothrow) float[extent.elements]);
  if (state.written_rows != nullptr) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("rows of ", Spec(extent).name, ": failed to allocate ", Fp32Size(extent), " bytes of host memory"));
}

void Shard::GiveUpRoom() {
  absl::MutexLock lock(&mu_);
  for (ExtentState& state : states_) {
    state.arithmetic = nullptr;
    if (state.source != PlaneSource::kWrittenRows) state.written_rows = nullptr;
  }
  room_ = Memory();
}

absl::Status Shard::KeepPlanes() const {
  if (plane_copy_ == nullptr) return absl::OkStatus();
  absl::ReaderMutexLock lock(&mu_);
  uint8_t* out = plane_copy_->data();
  const auto keep = [&out](const HostView& view) {
    std::memcpy(out, view.data(), view.size());
    out += view.size();
  };
  for (const ShardExtent& extent : extents_) {
    if (!HasMaster(extent)) RETURN_IF_ERROR(ReadPlanes(extent, keep));
  }
  PARAMSHARD_CHECK(out == plane_copy_->data() + plane_copy_->size_bytes());
  return absl::OkStatus();
}

absl::Status Shard::BringBackPlanes() {
  if (plane_copy_ == nullptr) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  auto left = absl::MakeConstSpan(plane_copy_->data(), plane_copy_->size_bytes());
  for (const ShardExtent& extent : extents_) {
    if (HasMaster(extent)) continue;
    for (const PlaneSpans& plane : Spans(extent, extent.rows)) {
      for (const auto& span : plane) {
        // The plane is this shard's own memory.
        RETURN_IF_ERROR(device_->Write(const_cast<uint8_t*>(span.data()), left.subspan(0, span.size())));
        left.remove_prefix(span.size());
      }
    }
    states_[IndexOf(extent)].source = PlaneSource::kNone;
  }
  return absl::OkStatus();
}

// Reads only the part: a row may be as large as the model.
absl::StatusOr<std::vector<float>> Shard::DecodedPlane(const ShardExtent& extent, const ExtentPart& part) const {
  const int64_t block_rows = ScaleBlock(EncodingOf(Spec(extent).encoding), Plane::kRowWise).rows;
  std::vector<float> values(part.rows.size() * part.columns);
  // Rows that begin within a block are decoded up to its end, and all that follow at once.
  const int64_t end = part.rows.end - extent.rows.begin;
  int64_t row = part.rows.begin - extent.rows.begin;
  for (float* out = values.data(); row < end;) {
    const int64_t next = row % block_rows == 0 ? end : std::min(end, (row / block_rows + 1) * block_rows);
    RETURN_IF_ERROR(DecodeRows(extent, {{row, next}, part.first_column, part.columns}, out));
    out += (next - row) * part.columns;
    row = next;
  }
  return values;
}

absl::Status Shard::DecodeRows(const ShardExtent& extent, const ExtentPart& part, float* out) const {
  const Encoding encoding = EncodingOf(Spec(extent).encoding);
  const int64_t columns = Spec(extent).columns();
  const int64_t data_before = DataBytes(encoding, part.rows.begin, columns) + DataBytes(encoding, 1, part.first_column);
  const int64_t scales_before = ScaleOffset(encoding, Plane::kRowWise, part.rows.begin, part.first_column, columns);
  const auto [all_data, all_scales, all_amax] = Spans(extent, extent.rows).front();
  ASSIGN_OR_RETURN(const HostView data,
                   device_->Read(all_data.data() + data_before, DataBytes(encoding, part.rows.size(), part.columns)));
  ASSIGN_OR_RETURN(const HostView scales,
                   device_->Read(all_scales.data() + scales_before,
                                 ScaleBytes(encoding, Plane::kRowWise, part.rows.size(), part.columns)));
  ASSIGN_OR_RETURN(const HostView amax, device_->Read(all_amax.data(), static_cast<int64_t>(all_amax.size())));
  DecodePlane(encoding, Plane::kRowWise, {.data = data.data(), .scales = scales.data(), .amax = amax.data()},
              part.rows.size(), part.columns, out);
  return absl::OkStatus();
}

// --- Steps

Shard::PushTarget Shard::BeginPush(int unit, absl::Span<const int> absent_parameters) {
  const auto& indices = extent_index_[unit];
  PushTarget target{.accumulators = std::vector<MutableGradient>(indices.size()),
                    .overwrite = std::make_unique<bool[]>(indices.size())};
  for (int parameter = 0; parameter < static_cast<int>(indices.size()); ++parameter) {
    const bool absent = std::binary_search(absent_parameters.begin(), absent_parameters.end(), parameter);
    const int index = indices[parameter];
    if (absent || index < 0 || index >= trainable_count_) continue;
    target.accumulators[parameter] = Gradient(extents_[index]);
    target.overwrite[parameter] = !has_gradient_[index];
    has_gradient_[index] = true;
  }
  return target;
}

absl::StatusOr<SquareSum> Shard::SumSquares(absl::Span<const SumTask> left) const {
  ASSIGN_OR_RETURN(const std::vector<SquareSum> sums, arithmetic_->SumSquares(has_gradient_, left));
  SquareSum total;
  for (const SquareSum& sum : sums) {
    total.sum += sum.sum;
    total.non_finite += sum.non_finite;
  }
  return total;
}

void Shard::MarkGradients(std::vector<bool>& has_gradient) const {
  for (int i = 0; i < trainable_count_; ++i) {
    if (has_gradient_[i]) has_gradient[PlaceOf(extents_[i])] = true;
  }
}

void Shard::AdoptGradients(const std::vector<bool>& has_gradient) {
  for (int i = 0; i < trainable_count_; ++i) has_gradient_[i] = has_gradient[PlaceOf(extents_[i])];
}

void Shard::DropGradients() { has_gradient_.assign(trainable_count_, false); }

std::vector<TensorScaling> Shard::Scalings() const {
  std::vector<TensorScaling> scalings;
  for (int i = 0; i < trainable_count_; ++i) scalings.push_back(states_[i].scaling);
  return scalings;
}

absl::Status Shard::Step(const StepParameters& parameters, const StepProgress& progress, ScalingBook& book) {
  absl::MutexLock lock(&mu_);
  ++version_;
  std::vector<std::optional<AdamStep>> steps(trainable_count_);
  for (int i = 0; i < trainable_count_; ++i) {
    if (!has_gradient_[i]) continue;
    const ShardExtent& extent = extents_[i];
    ExtentState& state = states_[i];
    steps[i] = StepOf(extent, ++state.step, parameters);
    state.awaits_amax = EncodesAfterAmax(EncodingOf(Spec(extent).encoding).format);
    if (!state.awaits_amax) state.scaling = book.Next(extent.unit, extent.parameter);
  }
  DropGradients();
  ASSIGN_OR_RETURN(const std::vector<float> amaxes, arithmetic_->Step(steps, Scalings(), progress));
  for (size_t i = 0; i < amaxes.size(); ++i) {
    if (steps[i].has_value()) book.AddStep(extents_[i].unit, extents_[i].parameter, amaxes[i]);
  }
  return absl::OkStatus();
}

absl::Status Shard::EncodeAfterAmax(const ScalingBook& book) {
  absl::MutexLock lock(&mu_);
  std::vector<bool> active;
  for (int i = 0; i < trainable_count_; ++i) {
    const ShardExtent& extent = extents_[i];
    ExtentState& state = states_[i];
    if (state.awaits_amax) state.scaling = book.Present(extent.unit, extent.parameter);
    active.push_back(std::exchange(state.awaits_amax, false));
  }
  return arithmetic_->EncodeAfterAmax(active, Scalings());
}

absl::Status Shard::MeasureAmaxes(ScalingBook& book, CancelCheck check_cancelled) const {
  absl::ReaderMutexLock lock(&mu_);
  ASSIGN_OR_RETURN(const std::vector<float> amaxes, arithmetic_->MeasureAmaxes(check_cancelled));
  for (size_t i = 0; i < amaxes.size(); ++i) {
    book.AddMaster(extents_[i].unit, extents_[i].parameter, amaxes[i]);
  }
  if (!kept_.empty()) {
    ASSIGN_OR_RETURN(const std::vector<float> kept, kept_arithmetic_->MeasureAmaxes(check_cancelled));
    for (size_t i = 0; i < kept.size(); ++i) {
      const ShardExtent& extent = extents_[kept_[i]];
      book.AddMaster(extent.unit, extent.parameter, kept[i]);
    }
  }
  for (int i = trainable_count_; i < extent_count(); ++i) {
    const ShardExtent& extent = extents_[i];
    if (!NeedsAmax(EncodingOf(Spec(extent).encoding).format) || states_[i].source == PlaneSource::kNone) continue;
    ASSIGN_OR_RETURN(const FrozenWork work, LoadFrozen(i));
    ASSIGN_OR_RETURN(const std::vector<float> measured, work.arithmetic->MeasureAmaxes(check_cancelled));
    book.AddMaster(extent.unit, extent.parameter, measured.front());
  }
  return absl::OkStatus();
}

AdamStep Shard::StepOf(const ShardExtent& extent, int64_t step, const StepParameters& parameters) const {
  const int index = Spec(extent).group;
  const Hyperparameters& group = parameters.groups[index];
  const ParameterGroup& fixed = spec_.groups[index];
  return {group, fixed.mode, fixed.bias_correction ? BiasCorrection(group.beta1, step) : 1.0f,
          fixed.bias_correction ? BiasCorrection(group.beta2, step) : 1.0f, parameters.gradient_scale};
}

absl::Status Shard::EncodePlanes(const ScalingBook& book, CancelCheck check_cancelled) {
  absl::MutexLock lock(&mu_);
  for (const ShardExtent& extent : extents_) {
    ExtentState& state = states_[IndexOf(extent)];
    state.scaling = book.Present(extent.unit, extent.parameter);
    state.awaits_amax = false;
  }
  RETURN_IF_ERROR(arithmetic_->EncodePlanes(Scalings(), check_cancelled));
  if (!kept_.empty()) {
    std::vector<TensorScaling> kept;
    for (const int i : kept_) kept.push_back(states_[i].scaling);
    RETURN_IF_ERROR(kept_arithmetic_->EncodePlanes(kept, check_cancelled));
  }
  for (int i = trainable_count_; i < extent_count(); ++i) {
    if (states_[i].source == PlaneSource::kNone) continue;
    ASSIGN_OR_RETURN(const FrozenWork work, LoadFrozen(i));
    RETURN_IF_ERROR(work.arithmetic->EncodePlanes({states_[i].scaling}, check_cancelled));
    states_[i].source = PlaneSource::kNone;
    states_[i].written_rows = nullptr;
  }
  return absl::OkStatus();
}

MutablePlane Shard::PlaneOf(const ShardExtent& extent, Plane plane) const {
  const UnitLayout& unit = layout_.units()[extent.unit];
  const ParameterLayout& parameter = unit.parameters[extent.parameter];
  const PlaneLayout& layout = plane == Plane::kRowWise ? parameter.row_wise : *parameter.column_wise;
  uint8_t* base = planes_.data() + unit.arena_offset;
  uint8_t* small = base + unit.small_extent_offset;
  return {.data = parameter.owner.has_value() ? small + layout.small_data_offset : base + layout.arena_offset,
          .scales = layout.scale_offset < 0 ? nullptr : small + layout.scale_offset,
          .amax = layout.amax_offset < 0 ? nullptr : small + layout.amax_offset};
}

MutableGradient Shard::Gradient(const ShardExtent& extent) const {
  return {gradients_->data() + extent.gradient_offset, spec_.accumulator_type};
}

AdamState Shard::State(const ShardExtent& extent) const {
  AdamState state;
  for (const MomentTraits& moment : kMomentKinds) {
    const std::optional<MomentType> type = MomentTypeOf(Spec(extent), moment.kind);
    if (!type.has_value()) continue;
    auto* const scales = reinterpret_cast<float*>(BeginOf(extent, ScaleArray(moment.kind)));
    state.moments[moment.kind] = {.data = BeginOf(extent, MomentArray(moment.kind)),
                                  .scales = HasMomentScales(*type) ? scales : nullptr,
                                  .type = *type};
  }
  if (!HasMaster(extent)) return state;
  if (HasRemainder(extent)) {
    state.remainder = reinterpret_cast<int16_t*>(BeginOf(extent, kRemainderArray));
    if (HasWeights(extent)) state.weights = reinterpret_cast<uint16_t*>(BeginOf(extent, kWeightArray));
  } else {
    state.master = reinterpret_cast<float*>(BeginOf(extent, kFloatMasterArray));
  }
  return state;
}

uint8_t* Shard::BeginOf(const ShardExtent& extent, int array) const {
  const Memory* const memory = array < kMasterArrays ? master_ : moments_[MomentOfArray(array)];
  return memory->data() + extent.state_offsets[array];
}

absl::StatusOr<std::vector<HostView>> Shard::Stored(const ShardExtent& extent, StateTensor tensor,
                                                    const ExtentPart& part) const {
  std::vector<HostView> arrays;
  for (const TensorForm form : {TensorForm::kElements, TensorForm::kRest}) {
    if (RowOf(Spec(extent), tensor, form).elements == 0) continue;
    ASSIGN_OR_RETURN(arrays.emplace_back(), StoredArray(extent, tensor, form, part));
  }
  return arrays;
}

absl::StatusOr<HostView> Shard::StoredArray(const ShardExtent& extent, StateTensor tensor, TensorForm form,
                                            const ExtentPart& part) const {
  const absl::Span<const uint8_t> bytes = BytesOf(extent, tensor, form, part);
  return device_->Read(bytes.data(), static_cast<int64_t>(bytes.size()));
}

absl::StatusOr<int64_t> Shard::CopyStored(const ShardExtent& extent, StateTensor tensor, TensorForm form,
                                          const ExtentPart& part, DeviceQueue& queue, uint8_t* target) const {
  RETURN_IF_ERROR(device_->health().status());
  const absl::Span<const uint8_t> bytes = BytesOf(extent, tensor, form, part);
  const auto size_bytes = static_cast<int64_t>(bytes.size());
  RETURN_IF_ERROR(queue.Copy({{.target = target, .source = bytes.data(), .size_bytes = size_bytes}}));
  return size_bytes;
}

absl::Span<const uint8_t> Shard::BytesOf(const ShardExtent& extent, StateTensor tensor, TensorForm form,
                                         const ExtentPart& part) const {
  const TensorRow row = RowOf(Spec(extent), tensor, form);
  // Each of a row's scales stands for a block of columns.
  const int64_t columns = Spec(extent).columns();
  const int64_t columns_of_element = row.elements == columns ? 1 : kMomentBlockSize;
  const int64_t elements = part.columns == columns ? part.rows.size() * row.elements
                                                   : (part.columns + columns_of_element - 1) / columns_of_element;
  const int64_t before = (part.rows.begin - extent.rows.begin) * row.elements + part.first_column / columns_of_element;
  const int64_t element_bytes = ElementBytes(row.type);
  return absl::MakeConstSpan(ArrayOf(extent, tensor, form) + before * element_bytes, elements * element_bytes);
}

absl::StatusOr<std::vector<float>> Shard::Read(const ShardExtent& extent, StateTensor tensor,
                                               const ExtentPart& part) const {
  if (RowOf(Spec(extent), tensor, TensorForm::kValues).elements == 0) return std::vector<float>();
  if (tensor == StateTensor::kMaster && !HasMaster(extent)) return DecodedPlane(extent, part);
  ASSIGN_OR_RETURN(const std::vector<HostView> arrays, Stored(extent, tensor, part));
  const int64_t rows = part.rows.size();
  std::vector<float> values(rows * part.columns);
  if (const std::optional<MomentKind> kind = MomentOf(tensor); kind.has_value()) {
    const ConstMoment moment{.data = arrays[0].data(),
                             .scales = arrays.size() > 1 ? reinterpret_cast<const float*>(arrays[1].data()) : nullptr,
                             .type = *MomentTypeOf(Spec(extent), *kind)};
    DecodeMoment(*kind, moment, rows, part.columns, values.data());
  } else if (HasRemainder(extent)) {
    JoinMasters(arrays[0].data(), reinterpret_cast<const int16_t*>(arrays[1].data()), rows * part.columns,
                values.data());
  } else {
    std::memcpy(values.data(), arrays[0].data(), arrays[0].size());
  }
  return values;
}

uint8_t* Shard::ArrayOf(const ShardExtent& extent, StateTensor tensor, TensorForm form) const {
  const bool is_elements = form == TensorForm::kElements;
  int array = kFloatMasterArray;
  if (const std::optional<MomentKind> kind = MomentOf(tensor); kind.has_value()) {
    array = is_elements ? MomentArray(*kind) : ScaleArray(*kind);
  } else if (HasRemainder(extent)) {
    if (is_elements && !HasWeights(extent)) return PlaneOf(extent, Plane::kRowWise).data;
    array = is_elements ? kWeightArray : kRemainderArray;
  }
  return BeginOf(extent, array) + (Spec(extent).trainable ? arithmetic_->position() : 0);
}

// Every array holds its rows one after the other.
absl::Status Shard::WriteArray(const ShardExtent& extent, StateTensor tensor, TensorForm form, RowRange rows,
                               absl::Span<const uint8_t> bytes) {
  if (bytes.empty()) return absl::OkStatus();
  const int64_t row_bytes = RowOf(Spec(extent), tensor, form).size_bytes();
  PARAMSHARD_CHECK(static_cast<int64_t>(bytes.size()) == rows.size() * row_bytes);
  return device_->Write(ArrayOf(extent, tensor, form) + (rows.begin - extent.rows.begin) * row_bytes, bytes);
}

absl::Status Shard::WriteStoredRows(const ShardExtent& extent, StateTensor tensor, TensorForm form, RowRange rows,
                                    absl::Span<const uint8_t> bytes) {
  absl::MutexLock lock(&mu_);
  return WriteArray(extent, tensor, form, rows, bytes);
}

absl::Status Shard::WriteRows(const ShardExtent& extent, StateTensor tensor, RowRange rows,
                              absl::Span<const float> values) {
  if (!HasMaster(extent)) {
    absl::MutexLock lock(&mu_);
    ExtentState& state = states_[IndexOf(extent)];
    RETURN_IF_ERROR(MakeRoomForRows(extent, state));
    state.source = PlaneSource::kWrittenRows;
    std::copy(values.begin(), values.end(),
              state.written_rows.get() + (rows.begin - extent.rows.begin) * Spec(extent).columns());
    return absl::OkStatus();
  }
  const StoredRows stored = EncodeRows(Spec(extent), tensor, rows.size(), values);
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(WriteArray(extent, tensor, TensorForm::kElements, rows, stored.elements));
  return WriteArray(extent, tensor, TensorForm::kRest, rows, stored.rest);
}

absl::Status Shard::WritePlane(const ShardExtent& extent, Plane plane, RowRange rows, const PlaneContent& content) {
  const std::vector<PlaneSpans> planes = Spans(extent, rows);
  const auto& spans = planes[plane == Plane::kRowWise ? 0 : 1];
  absl::MutexLock lock(&mu_);
  ExtentState& state = states_[IndexOf(extent)];
  state.source = PlaneSource::kNone;
  state.written_rows = nullptr;
  const std::array<absl::Span<const uint8_t>, 3> contents = {content.data, content.scales, content.amax};
  for (size_t i = 0; i < spans.size(); ++i) {
    if (contents[i].empty()) continue;
    PARAMSHARD_CHECK(contents[i].size() == spans[i].size());
    // The plane is this shard's own memory.
    RETURN_IF_ERROR(device_->Write(const_cast<uint8_t*>(spans[i].data()), contents[i]));
  }
  return absl::OkStatus();
}

int64_t Shard::position() const {
  absl::ReaderMutexLock lock(&mu_);
  return arithmetic_->position();
}

void Shard::CollectSteps(absl::Span<int64_t> steps) const {
  absl::ReaderMutexLock lock(&mu_);
  for (int i = 0; i < extent_count(); ++i) steps[PlaceOf(extents_[i])] = states_[i].step;
}

void Shard::SetStep(const ShardExtent& extent, int64_t step) {
  absl::MutexLock lock(&mu_);
  states_[IndexOf(extent)].step = step;
}

void Shard::SetSteps(absl::Span<const int64_t> steps) {
  absl::MutexLock lock(&mu_);
  for (int i = 0; i < extent_count(); ++i) states_[i].step = steps[PlaceOf(extents_[i])];
}

void Shard::AdoptNumbers(absl::Span<const int64_t> steps, int64_t version, int64_t generation) {
  SetSteps(steps);
  absl::MutexLock lock(&mu_);
  version_ = version;
  generation_ = generation;
}

void Shard::SetVersion(int64_t version) {
  absl::MutexLock lock(&mu_);
  version_ = version;
}

void Shard::SetGeneration(int64_t generation) {
  absl::MutexLock lock(&mu_);
  generation_ = generation;
}

std::vector<ExtentPart> Shard::Parts(const ShardExtent& extent) const {
  const int64_t columns = Spec(extent).columns();
  const int64_t granule = GranuleRows(EncodingOf(Spec(extent).encoding).format);
  const int64_t rows_of_a_part = std::max(granule, kElementsOfAPart / columns / granule * granule);
  std::vector<ExtentPart> parts;
  for (int64_t row = extent.rows.begin; row < extent.rows.end; row += rows_of_a_part) {
    const RowRange rows{row, std::min(row + rows_of_a_part, extent.rows.end)};
    parts.push_back({.rows = rows, .first_column = 0, .columns = columns});
  }
  return parts;
}

std::vector<Shard::PlaneSpans> Shard::Spans(const ShardExtent& extent, RowRange rows) const {
  const int64_t columns = Spec(extent).columns();
  const Encoding encoding = EncodingOf(Spec(extent).encoding);
  const int64_t first = rows.begin - extent.rows.begin;
  std::vector<PlaneSpans> spans;
  const auto add = [&](Plane plane) {
    const MutablePlane found = PlaneAt(encoding, plane, PlaneOf(extent, plane), columns, first);
    const int64_t data_bytes = DataBytes(encoding, rows.size(), columns);
    const int64_t scale_bytes = ScaleBytes(encoding, plane, rows.size(), columns);
    const int64_t amax_bytes = plane == Plane::kRowWise ? AmaxBytes(encoding.format) : 0;
    spans.push_back({absl::MakeConstSpan(found.data, data_bytes), absl::MakeConstSpan(found.scales, scale_bytes),
                     absl::MakeConstSpan(found.amax, amax_bytes)});
  };
  add(Plane::kRowWise);
  if (HasColumnPlane(encoding.format)) add(Plane::kColumnWise);
  return spans;
}

int64_t Shard::PlaneSize(const ShardExtent& extent) const {
  int64_t bytes = 0;
  for (const PlaneSpans& plane : Spans(extent, extent.rows)) {
    for (const auto& span : plane) bytes += static_cast<int64_t>(span.size());
  }
  return bytes;
}

int64_t Shard::OptimizerSize(const ShardExtent& extent) const {
  return extent.StateBytes() + AccumulatorBytes(spec_.accumulator_type, Spec(extent), extent.rows.size());
}

absl::Status Shard::ReadPlanes(const ShardExtent& extent, absl::FunctionRef<void(const HostView&)> sink) const {
  constexpr size_t kBytesAtATime = kElementsOfAPart * sizeof(float);
  for (const PlaneSpans& plane : Spans(extent, extent.rows)) {
    for (absl::Span<const uint8_t> left : plane) {
      while (!left.empty()) {
        const auto next = left.subspan(0, kBytesAtATime);
        ASSIGN_OR_RETURN(const HostView view, device_->Read(next.data(), static_cast<int64_t>(next.size())));
        sink(view);
        left.remove_prefix(next.size());
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PlaneViews>> Shard::PlaneBytes(const ShardExtent& extent, RowRange rows) const {
  const auto read = [&](absl::Span<const uint8_t> span) {
    return device_->Read(span.data(), static_cast<int64_t>(span.size()));
  };
  std::vector<PlaneViews> planes;
  for (const auto& [data, scales, amax] : Spans(extent, rows)) {
    PlaneViews& plane = planes.emplace_back();
    ASSIGN_OR_RETURN(plane.data, read(data));
    ASSIGN_OR_RETURN(plane.scales, read(scales));
    ASSIGN_OR_RETURN(plane.amax, read(amax));
  }
  return planes;
}

absl::StatusOr<bool> Shard::PlanesMatch(const ShardExtent& extent) const {
  // The plane is a part of the master, or all of the parameter.
  if (!HasMaster(extent) || (HasRemainder(extent) && !HasWeights(extent))) return true;
  for (const ExtentPart& part : Parts(extent)) {
    ASSIGN_OR_RETURN(const bool match, PlanesMatch(extent, part));
    if (!match) return false;
  }
  return true;
}

absl::StatusOr<bool> Shard::PlanesMatch(const ShardExtent& extent, const ExtentPart& part) const {
  if (HasRemainder(extent)) {
    ASSIGN_OR_RETURN(const HostView weights, StoredArray(extent, StateTensor::kMaster, TensorForm::kElements, part));
    ASSIGN_OR_RETURN(const std::vector<PlaneViews> served, PlaneBytes(extent, part.rows));
    return served[0].data.bytes() == weights.bytes();
  }
  ASSIGN_OR_RETURN(const std::vector<float> master, Read(extent, StateTensor::kMaster, part));
  ASSIGN_OR_RETURN(const std::vector<PlaneViews> served, PlaneBytes(extent, part.rows));
  std::vector<HostPlane> again(served.begin(), served.end());
  paramshard::EncodePlanes(EncodingOf(Spec(extent).encoding), master.data(), part.rows.size(), part.columns,
                           again[0].View(), again.size() > 1 ? again[1].View() : MutablePlane{}, scaling(extent));
  return std::equal(served.begin(), served.end(), again.begin(),
                    [](const PlaneViews& view, const HostPlane& plane) { return plane.SameAs(view); });
}

}  // namespace paramshard::server
