#include "server/store/shard.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/bfloat16.h"

namespace paramshard::server {
namespace {

// Extents start at cache lines, so that ranks and vector loads never share one.
constexpr int64_t kExtentAlignment = 64;

int64_t AlignUp(int64_t value, int64_t alignment) { return (value + alignment - 1) / alignment * alignment; }

// Sizes of the private memories and the offsets of the extents in them.
struct Placement {
  std::vector<ShardExtent> extents;
  ShardBytes bytes;
};

void Place(const ParameterSpec& spec, ShardExtent extent, Placement& placement) {
  ShardBytes& bytes = placement.bytes;
  extent.elements = extent.rows.size() * spec.columns;
  extent.master_offset = bytes.master / static_cast<int64_t>(sizeof(float));
  extent.exp_avg_offset = bytes.exp_avg;
  extent.exp_avg_sq_offset = bytes.exp_avg_sq;
  bytes.master += AlignUp(extent.elements * static_cast<int64_t>(sizeof(float)), kExtentAlignment);
  bytes.exp_avg += AlignUp(extent.elements * MomentBytes(spec.exp_avg_type), kExtentAlignment);
  bytes.exp_avg_sq += AlignUp(extent.elements * MomentBytes(spec.exp_avg_sq_type), kExtentAlignment);
  placement.extents.push_back(extent);
}

Placement PlaceExtents(const ModelSpec& spec, const Layout& layout, int rank) {
  Placement placement;
  for (int unit = 0; unit < static_cast<int>(spec.units.size()); ++unit) {
    const auto& parameters = spec.units[unit].parameters;
    for (int parameter = 0; parameter < static_cast<int>(parameters.size()); ++parameter) {
      const RowRange rows = layout.Extent(unit, parameter, rank);
      if (rows.size() > 0)
        Place(parameters[parameter], {.unit = unit, .parameter = parameter, .rows = rows}, placement);
    }
  }
  placement.bytes.gradients = placement.bytes.master;
  placement.bytes.planes = layout.arena_bytes();
  return placement;
}

std::vector<uint8_t> EncodeMoments(absl::Span<const float> values, MomentType type) {
  std::vector<uint8_t> stored(values.size() * MomentBytes(type));
  if (type == MomentType::kFP32) {
    std::memcpy(stored.data(), values.data(), stored.size());
    return stored;
  }
  auto* halves = reinterpret_cast<uint16_t*>(stored.data());
  std::transform(values.begin(), values.end(), halves, [](float value) { return EncodeBFloat16(value); });
  return stored;
}

std::vector<float> DecodeMoments(absl::Span<const uint8_t> stored, MomentType type) {
  std::vector<float> values(stored.size() / MomentBytes(type));
  if (type == MomentType::kFP32) {
    std::memcpy(values.data(), stored.data(), stored.size());
    return values;
  }
  const auto* halves = reinterpret_cast<const uint16_t*>(stored.data());
  std::transform(halves, halves + values.size(), values.begin(), [](uint16_t half) { return DecodeBFloat16(half); });
  return values;
}

}  // namespace

ShardBytes& ShardBytes::operator+=(const ShardBytes& other) {
  master += other.master;
  exp_avg += other.exp_avg;
  exp_avg_sq += other.exp_avg_sq;
  gradients += other.gradients;
  planes += other.planes;
  return *this;
}

ShardBytes Shard::SizeOf(const ModelSpec& spec, const Layout& layout, int rank) {
  return PlaceExtents(spec, layout, rank).bytes;
}

absl::StatusOr<std::unique_ptr<Shard>> Shard::Create(const ModelSpec& spec, const Layout& layout, int rank,
                                                     ComputeDevice* device) {
  std::unique_ptr<Shard> shard(new Shard(spec, layout, rank, device));
  RETURN_IF_ERROR(shard->Allocate());
  RETURN_IF_ERROR(shard->MakeArithmetic());
  RETURN_IF_ERROR(shard->FillInitialValues());
  RETURN_IF_ERROR(shard->EncodePlanes());
  return shard;
}

Shard::Shard(const ModelSpec& spec, const Layout& layout, int rank, ComputeDevice* device)
    : spec_(spec), layout_(layout), rank_(rank), device_(device) {
  extents_ = PlaceExtents(spec, layout, rank).extents;
  for (const UnitSpec& unit : spec.units) extent_index_.emplace_back(unit.parameters.size(), -1);
  for (int i = 0; i < static_cast<int>(extents_.size()); ++i) {
    extent_index_[extents_[i].unit][extents_[i].parameter] = i;
  }
}

absl::Status Shard::Allocate() {
  const ShardBytes bytes = SizeOf(spec_, layout_, rank_);
  ASSIGN_OR_RETURN(master_, device_->Allocate("paramshard-master", bytes.master, Sharing::kPrivate));
  ASSIGN_OR_RETURN(exp_avg_, device_->Allocate("paramshard-exp-avg", bytes.exp_avg, Sharing::kPrivate));
  ASSIGN_OR_RETURN(exp_avg_sq_, device_->Allocate("paramshard-exp-avg-sq", bytes.exp_avg_sq, Sharing::kPrivate));
  ASSIGN_OR_RETURN(gradients_, device_->Allocate("paramshard-gradients", bytes.gradients, Sharing::kPrivate));
  ASSIGN_OR_RETURN(planes_, device_->Allocate("paramshard-planes", bytes.planes, Sharing::kReadOnly));
  return absl::OkStatus();
}

absl::Status Shard::MakeArithmetic() {
  std::vector<ExtentTensors> tensors;
  for (const ShardExtent& extent : extents_) tensors.push_back(Tensors(extent));
  ASSIGN_OR_RETURN(arithmetic_, device_->MakeArithmetic(std::move(tensors)));
  return absl::OkStatus();
}

ExtentTensors Shard::Tensors(const ShardExtent& extent) const {
  const ParameterSpec& spec = Spec(extent);
  return {.gradient = Gradient(extent),
          .state = State(extent),
          .rows = extent.rows.size(),
          .columns = spec.columns,
          .encoding = spec.encoding,
          .row_wise = PlaneOf(extent, Plane::kRowWise),
          .column_wise = HasColumnPlane(spec.encoding.format) ? PlaneOf(extent, Plane::kColumnWise) : MutablePlane{}};
}

const ShardExtent* Shard::Find(int unit, int parameter) const {
  const int index = extent_index_[unit][parameter];
  return index < 0 ? nullptr : &extents_[index];
}

// The index of a parameter in the whole model keys its random numbers, so that every sharding draws the same.
absl::Status Shard::FillInitialValues() {
  std::vector<int64_t> first_parameter(spec_.units.size(), 0);
  for (size_t unit = 1; unit < spec_.units.size(); ++unit) {
    first_parameter[unit] = first_parameter[unit - 1] + static_cast<int64_t>(spec_.units[unit - 1].parameters.size());
  }
  std::vector<ShardArithmetic::Initial> initials;
  for (const ShardExtent& extent : extents_) {
    const ParameterSpec& spec = Spec(extent);
    initials.push_back({.value = spec.initial_value,
                        .parameter_index = first_parameter[extent.unit] + extent.parameter,
                        .first_element = extent.rows.begin * spec.columns});
  }
  return arithmetic_->Fill(spec_.seed, initials);
}

Shard::PushTarget Shard::BeginPush(int unit, absl::Span<const int> absent_parameters) {
  const auto& indices = extent_index_[unit];
  PushTarget target{.accumulators = std::vector<float*>(indices.size(), nullptr),
                    .overwrite = std::make_unique<bool[]>(indices.size())};
  for (int parameter = 0; parameter < static_cast<int>(indices.size()); ++parameter) {
    const bool absent = std::binary_search(absent_parameters.begin(), absent_parameters.end(), parameter);
    if (absent || indices[parameter] < 0) continue;
    ShardExtent& extent = extents_[indices[parameter]];
    target.accumulators[parameter] = Gradient(extent);
    target.overwrite[parameter] = !std::exchange(extent.has_gradient, true);
  }
  return target;
}

absl::StatusOr<SquareSum> Shard::SumGradients() const {
  std::vector<bool> active;
  for (const ShardExtent& extent : extents_) active.push_back(extent.has_gradient);
  ASSIGN_OR_RETURN(const std::vector<SquareSum> sums, arithmetic_->SumSquares(active));
  SquareSum total;
  for (const SquareSum& sum : sums) {
    total.sum += sum.sum;
    total.non_finite += sum.non_finite;
  }
  return total;
}

void Shard::DropGradients() {
  for (ShardExtent& extent : extents_) extent.has_gradient = false;
}

absl::Status Shard::Step(const StepParameters& parameters) {
  absl::MutexLock lock(&mu_);
  ++version_;
  std::vector<std::optional<AdamStep>> steps(extents_.size());
  for (size_t i = 0; i < extents_.size(); ++i) {
    ShardExtent& extent = extents_[i];
    if (!std::exchange(extent.has_gradient, false)) continue;
    ++extent.step;
    steps[i] = StepOf(extent, parameters);
  }
  return arithmetic_->Step(steps);
}

AdamStep Shard::StepOf(const ShardExtent& extent, const StepParameters& parameters) const {
  const int index = Spec(extent).group;
  const GroupStep& group = parameters.groups[index];
  const ParameterGroup& fixed = spec_.groups[index];
  return {.learning_rate = group.learning_rate,
          .beta1 = group.beta1,
          .beta2 = group.beta2,
          .epsilon = group.epsilon,
          .weight_decay = group.weight_decay,
          .mode = fixed.mode,
          .bias_correction1 = fixed.bias_correction ? BiasCorrection(group.beta1, extent.step) : 1.0f,
          .bias_correction2 = fixed.bias_correction ? BiasCorrection(group.beta2, extent.step) : 1.0f,
          .gradient_scale = parameters.gradient_scale};
}

absl::Status Shard::EncodePlanes() {
  absl::MutexLock lock(&mu_);
  return arithmetic_->EncodePlanes();
}

MutablePlane Shard::PlaneOf(const ShardExtent& extent, Plane plane) const {
  const UnitLayout& unit = layout_.units()[extent.unit];
  const ParameterLayout& parameter = unit.parameters[extent.parameter];
  const PlaneLayout& layout = plane == Plane::kRowWise ? parameter.row_wise : *parameter.column_wise;
  uint8_t* base = planes_.data() + unit.arena_offset;
  uint8_t* small = base + unit.small_extent_offset;
  return {.data = parameter.owner.has_value() ? small + layout.small_data_offset : base + layout.arena_offset,
          .scales = layout.scale_offset < 0 ? nullptr : small + layout.scale_offset};
}

float* Shard::Gradient(const ShardExtent& extent) const {
  return reinterpret_cast<float*>(gradients_.data()) + extent.master_offset;
}

uint8_t* Shard::Tensor(const ShardExtent& extent, StateTensor tensor) const {
  switch (tensor) {
    case StateTensor::kMaster:
      return master_.data() + extent.master_offset * static_cast<int64_t>(sizeof(float));
    case StateTensor::kExpAvg:
      return exp_avg_.data() + extent.exp_avg_offset;
    case StateTensor::kExpAvgSq:
      return exp_avg_sq_.data() + extent.exp_avg_sq_offset;
  }
  return nullptr;
}

MomentType Shard::Type(const ShardExtent& extent, StateTensor tensor) const {
  if (tensor == StateTensor::kMaster) return MomentType::kFP32;
  return tensor == StateTensor::kExpAvg ? Spec(extent).exp_avg_type : Spec(extent).exp_avg_sq_type;
}

AdamState Shard::State(const ShardExtent& extent) const {
  return {.master = reinterpret_cast<float*>(Tensor(extent, StateTensor::kMaster)),
          .exp_avg = {.data = Tensor(extent, StateTensor::kExpAvg), .type = Spec(extent).exp_avg_type},
          .exp_avg_sq = {.data = Tensor(extent, StateTensor::kExpAvgSq), .type = Spec(extent).exp_avg_sq_type}};
}

absl::StatusOr<HostView> Shard::Stored(const ShardExtent& extent, StateTensor tensor) const {
  return device_->Read(Tensor(extent, tensor), extent.elements * MomentBytes(Type(extent, tensor)));
}

absl::StatusOr<std::vector<float>> Shard::Read(const ShardExtent& extent, StateTensor tensor) const {
  ASSIGN_OR_RETURN(const HostView stored, Stored(extent, tensor));
  return DecodeMoments(stored.bytes(), Type(extent, tensor));
}

absl::Status Shard::Write(const ShardExtent& extent, StateTensor tensor, absl::Span<const float> values) {
  absl::MutexLock lock(&mu_);
  return device_->Write(Tensor(extent, tensor), EncodeMoments(values, Type(extent, tensor)));
}

void Shard::SetStep(const ShardExtent& extent, int64_t step) {
  absl::MutexLock lock(&mu_);
  extents_[extent_index_[extent.unit][extent.parameter]].step = step;
}

void Shard::SetVersion(int64_t version) {
  absl::MutexLock lock(&mu_);
  version_ = version;
}

std::vector<absl::Span<const uint8_t>> Shard::PlaneSpans(const ShardExtent& extent) const {
  const ParameterSpec& spec = Spec(extent);
  std::vector<absl::Span<const uint8_t>> spans;
  const auto add = [&](Plane plane) {
    const MutablePlane found = PlaneOf(extent, plane);
    spans.emplace_back(found.data, DataBytes(spec.encoding, extent.rows.size(), spec.columns));
    spans.emplace_back(found.scales, ScaleBytes(spec.encoding, plane, extent.rows.size(), spec.columns));
  };
  add(Plane::kRowWise);
  if (HasColumnPlane(spec.encoding.format)) add(Plane::kColumnWise);
  return spans;
}

int64_t Shard::PlaneSize(const ShardExtent& extent) const {
  int64_t bytes = 0;
  for (const auto& span : PlaneSpans(extent)) bytes += static_cast<int64_t>(span.size());
  return bytes;
}

absl::StatusOr<std::vector<HostView>> Shard::PlaneBytes(const ShardExtent& extent) const {
  std::vector<HostView> views;
  for (const auto& span : PlaneSpans(extent)) {
    ASSIGN_OR_RETURN(views.emplace_back(), device_->Read(span.data(), static_cast<int64_t>(span.size())));
  }
  return views;
}

absl::StatusOr<bool> Shard::PlanesMatch(const ShardExtent& extent) const {
  const ParameterSpec& spec = Spec(extent);
  ASSIGN_OR_RETURN(const std::vector<float> master, Read(extent, StateTensor::kMaster));
  ASSIGN_OR_RETURN(const std::vector<HostView> served, PlaneBytes(extent));
  std::vector<std::vector<uint8_t>> again;
  for (const HostView& view : served) again.emplace_back(view.size());
  const auto plane = [&](size_t first) {
    return first < again.size() ? MutablePlane{again[first].data(), again[first + 1].data()} : MutablePlane{};
  };
  paramshard::EncodePlanes(spec.encoding, master.data(), extent.rows.size(), spec.columns, plane(0), plane(2));
  return std::equal(served.begin(), served.end(), again.begin(),
                    [](const HostView& view, const std::vector<uint8_t>& bytes) {
                      return std::equal(bytes.begin(), bytes.end(), view.bytes().begin());
                    });
}

}  // namespace paramshard::server
