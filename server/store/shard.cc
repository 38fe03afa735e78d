#include "server/store/shard.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/random/initial_values.h"

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

void StoreMoments(absl::Span<const float> values, MomentType type, uint8_t* stored) {
  if (type == MomentType::kFP32) {
    std::memcpy(stored, values.data(), values.size() * sizeof(float));
    return;
  }
  auto* halves = reinterpret_cast<uint16_t*>(stored);
  std::transform(values.begin(), values.end(), halves, [](float value) { return EncodeBFloat16(value); });
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

absl::StatusOr<std::unique_ptr<Shard>> Shard::Create(const ModelSpec& spec, const Layout& layout, int rank) {
  std::unique_ptr<Shard> shard(new Shard(spec, layout, rank));
  RETURN_IF_ERROR(shard->Allocate());
  shard->FillInitialValues();
  shard->EncodePlanes();
  return shard;
}

Shard::Shard(const ModelSpec& spec, const Layout& layout, int rank) : spec_(spec), layout_(layout), rank_(rank) {
  extents_ = PlaceExtents(spec, layout, rank).extents;
  for (const UnitSpec& unit : spec.units) extent_index_.emplace_back(unit.parameters.size(), -1);
  for (int i = 0; i < static_cast<int>(extents_.size()); ++i) {
    extent_index_[extents_[i].unit][extents_[i].parameter] = i;
  }
}

absl::Status Shard::Allocate() {
  const ShardBytes bytes = SizeOf(spec_, layout_, rank_);
  ASSIGN_OR_RETURN(master_, Memory::Allocate("paramshard-master", bytes.master, Sharing::kPrivate));
  ASSIGN_OR_RETURN(exp_avg_, Memory::Allocate("paramshard-exp-avg", bytes.exp_avg, Sharing::kPrivate));
  ASSIGN_OR_RETURN(exp_avg_sq_, Memory::Allocate("paramshard-exp-avg-sq", bytes.exp_avg_sq, Sharing::kPrivate));
  ASSIGN_OR_RETURN(gradients_, Memory::Allocate("paramshard-gradients", bytes.gradients, Sharing::kPrivate));
  ASSIGN_OR_RETURN(planes_, Memory::Allocate("paramshard-planes", bytes.planes, Sharing::kReadOnly));
  return absl::OkStatus();
}

const ShardExtent* Shard::Find(int unit, int parameter) const {
  const int index = extent_index_[unit][parameter];
  return index < 0 ? nullptr : &extents_[index];
}

// The index of a parameter in the whole model keys its random numbers, so that every sharding draws the same.
void Shard::FillInitialValues() {
  std::vector<int64_t> first_parameter(spec_.units.size(), 0);
  for (size_t unit = 1; unit < spec_.units.size(); ++unit) {
    first_parameter[unit] = first_parameter[unit - 1] + static_cast<int64_t>(spec_.units[unit - 1].parameters.size());
  }
  for (const ShardExtent& extent : extents_) {
    const ParameterSpec& spec = Spec(extent);
    paramshard::FillInitialValues(spec.initial_value, spec_.seed, first_parameter[extent.unit] + extent.parameter,
                                  extent.rows.begin * spec.columns, extent.elements,
                                  reinterpret_cast<float*>(Tensor(extent, StateTensor::kMaster)));
  }
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

SquareSum Shard::SumGradients() const {
  SquareSum total;
  for (const ShardExtent& extent : extents_) {
    if (!extent.has_gradient) continue;
    const SquareSum sum = SumOfSquares(Gradient(extent), extent.elements);
    total.sum += sum.sum;
    total.non_finite += sum.non_finite;
  }
  return total;
}

void Shard::DropGradients() {
  for (ShardExtent& extent : extents_) extent.has_gradient = false;
}

void Shard::Step(const StepParameters& parameters) {
  absl::MutexLock lock(&mu_);
  ++version_;
  for (ShardExtent& extent : extents_) {
    if (!std::exchange(extent.has_gradient, false)) continue;
    ++extent.step;
    const ParameterSpec& spec = Spec(extent);
    const GroupStep& group = parameters.groups[spec.group];
    const ParameterGroup& fixed = spec_.groups[spec.group];
    const AdamStep step{.learning_rate = group.learning_rate,
                        .beta1 = group.beta1,
                        .beta2 = group.beta2,
                        .epsilon = group.epsilon,
                        .weight_decay = group.weight_decay,
                        .mode = fixed.mode,
                        .bias_correction1 = fixed.bias_correction ? BiasCorrection(group.beta1, extent.step) : 1.0f,
                        .bias_correction2 = fixed.bias_correction ? BiasCorrection(group.beta2, extent.step) : 1.0f,
                        .gradient_scale = parameters.gradient_scale};
    FusedAdam(step, Gradient(extent), State(extent), extent.rows.size(), spec.columns, spec.encoding,
              PlaneIn(planes_.data(), extent, Plane::kRowWise), ColumnPlaneIn(planes_.data(), extent));
  }
}

void Shard::EncodePlanes() {
  absl::MutexLock lock(&mu_);
  for (const ShardExtent& extent : extents_) {
    EncodeExtent(extent, PlaneIn(planes_.data(), extent, Plane::kRowWise), ColumnPlaneIn(planes_.data(), extent));
  }
}

void Shard::EncodeExtent(const ShardExtent& extent, MutablePlane row_wise, MutablePlane column_wise) const {
  const ParameterSpec& spec = Spec(extent);
  paramshard::EncodePlanes(spec.encoding, Master(extent), extent.rows.size(), spec.columns, row_wise, column_wise);
}

MutablePlane Shard::PlaneIn(uint8_t* arena, const ShardExtent& extent, Plane plane) const {
  const UnitLayout& unit = layout_.units()[extent.unit];
  const ParameterLayout& parameter = unit.parameters[extent.parameter];
  const PlaneLayout& layout = plane == Plane::kRowWise ? parameter.row_wise : *parameter.column_wise;
  uint8_t* base = arena + unit.arena_offset;
  uint8_t* small = base + unit.small_extent_offset;
  return {.data = parameter.owner.has_value() ? small + layout.small_data_offset : base + layout.arena_offset,
          .scales = layout.scale_offset < 0 ? nullptr : small + layout.scale_offset};
}

MutablePlane Shard::ColumnPlaneIn(uint8_t* arena, const ShardExtent& extent) const {
  return HasColumnPlane(Spec(extent).encoding.format) ? PlaneIn(arena, extent, Plane::kColumnWise) : MutablePlane{};
}

const float* Shard::Master(const ShardExtent& extent) const {
  return reinterpret_cast<const float*>(Tensor(extent, StateTensor::kMaster));
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

AdamState Shard::State(const ShardExtent& extent) {
  return {.master = reinterpret_cast<float*>(Tensor(extent, StateTensor::kMaster)),
          .exp_avg = Tensor(extent, StateTensor::kExpAvg),
          .exp_avg_type = Spec(extent).exp_avg_type,
          .exp_avg_sq = Tensor(extent, StateTensor::kExpAvgSq),
          .exp_avg_sq_type = Spec(extent).exp_avg_sq_type};
}

absl::Span<const uint8_t> Shard::Stored(const ShardExtent& extent, StateTensor tensor) const {
  return {Tensor(extent, tensor), static_cast<size_t>(extent.elements * MomentBytes(Type(extent, tensor)))};
}

std::vector<float> Shard::Read(const ShardExtent& extent, StateTensor tensor) const {
  std::vector<float> values(extent.elements);
  const uint8_t* stored = Tensor(extent, tensor);
  if (Type(extent, tensor) == MomentType::kFP32) {
    std::memcpy(values.data(), stored, values.size() * sizeof(float));
    return values;
  }
  const auto* halves = reinterpret_cast<const uint16_t*>(stored);
  std::transform(halves, halves + extent.elements, values.begin(), [](uint16_t half) { return DecodeBFloat16(half); });
  return values;
}

void Shard::Write(const ShardExtent& extent, StateTensor tensor, absl::Span<const float> values) {
  absl::MutexLock lock(&mu_);
  StoreMoments(values, Type(extent, tensor), Tensor(extent, tensor));
}

void Shard::SetStep(const ShardExtent& extent, int64_t step) {
  absl::MutexLock lock(&mu_);
  extents_[extent_index_[extent.unit][extent.parameter]].step = step;
}

void Shard::SetVersion(int64_t version) {
  absl::MutexLock lock(&mu_);
  version_ = version;
}

ConstPlane Shard::ReadPlane(const ShardExtent& extent, Plane plane) const {
  const MutablePlane found = PlaneIn(planes_.data(), extent, plane);
  return {.data = found.data, .scales = found.scales};
}

std::vector<absl::Span<const uint8_t>> Shard::PlaneBytes(const ShardExtent& extent) const {
  const ParameterSpec& spec = Spec(extent);
  std::vector<absl::Span<const uint8_t>> spans;
  const auto add = [&](Plane plane) {
    const ConstPlane found = ReadPlane(extent, plane);
    spans.emplace_back(found.data, DataBytes(spec.encoding, extent.rows.size(), spec.columns));
    spans.emplace_back(found.scales, ScaleBytes(spec.encoding, plane, extent.rows.size(), spec.columns));
  };
  add(Plane::kRowWise);
  if (HasColumnPlane(spec.encoding.format)) add(Plane::kColumnWise);
  return spans;
}

bool Shard::PlanesMatch(const ShardExtent& extent) const {
  const std::vector<absl::Span<const uint8_t>> served = PlaneBytes(extent);
  std::vector<std::vector<uint8_t>> again;
  for (const auto& span : served) again.emplace_back(span.size());
  const auto plane = [&](size_t first) {
    return first < again.size() ? MutablePlane{again[first].data(), again[first + 1].data()} : MutablePlane{};
  };
  EncodeExtent(extent, plane(0), plane(2));
  for (size_t i = 0; i < served.size(); ++i) {
    if (!std::equal(served[i].begin(), served[i].end(), again[i].begin())) return false;
  }
  return true;
}

}  // namespace paramshard::server
