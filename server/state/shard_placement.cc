#include "server/state/shard_placement.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "common/model/muon_matrices.h"
#include "kernels/base/align.h"
#include "kernels/formats/codec.h"
#include "kernels/formats/format.h"
#include "kernels/optim/moment.h"

namespace paramshard::server {
namespace {

// Returns the bytes of a parameter's row in each array.
std::array<int64_t, kStateArrays> RowBytes(const ParameterSpec& spec, const MovePolicy& policy) {
  std::array<int64_t, kStateArrays> bytes = {};
  const int64_t columns = spec.columns();
  if (spec.master_type == MasterType::kFP32) bytes[kFloatMasterArray] = columns * static_cast<int64_t>(sizeof(float));
  if (spec.master_type == MasterType::kBF16Remainder) {
    bytes[kRemainderArray] = columns * static_cast<int64_t>(sizeof(int16_t));
    if (policy.moves) bytes[kWeightArray] = columns * static_cast<int64_t>(sizeof(uint16_t));
  }
  for (const MomentTraits& moment : kMomentKinds) {
    const std::optional<MomentType> type = MomentTypeOf(spec, moment.kind);
    if (!type.has_value()) continue;
    bytes[MomentArray(moment.kind)] = columns * MomentBytes(*type);
    bytes[ScaleArray(moment.kind)] = MomentScaleCount(*type, 1, columns) * static_cast<int64_t>(sizeof(float));
  }
  return bytes;
}

int64_t PlaneBytes(const ParameterSpec& spec, int64_t rows) {
  const Encoding encoding = EncodingOf(spec.encoding);
  const int64_t columns = spec.columns();
  const int64_t row_wise = DataBytes(encoding, rows, columns) + ScaleBytes(encoding, Plane::kRowWise, rows, columns) +
                           AmaxBytes(encoding.format);
  if (!HasColumnPlane(encoding.format)) return row_wise;
  return row_wise + DataBytes(encoding, rows, columns) + ScaleBytes(encoding, Plane::kColumnWise, rows, columns);
}

// Appends `size` bytes to a memory, and returns where they begin.
int64_t Append(int64_t& end, int64_t size) { return std::exchange(end, end + AlignUp(size, kExtentAlignment)); }

// Fills in a placement, step by step.
class Placer {
 public:
  Placer(const ModelSpec& spec, ShardPlacement& placement) : spec_(spec), placement_(placement) {}

  void FindExtents(const Layout& layout, int rank, const MovePolicy& policy);
  void LayOutArrays();
  // Cuts the bands in which steps move the state.
  void CutBands(const BandRule& rule);
  void PlaceState();
  void PlaceGradients(int ranks, bool has_replicas);
  void CountBytes();
  void CountPlaneCopies();

 private:
  const ParameterSpec& Spec(const ShardExtent& extent) const {
    return spec_.units[extent.unit].parameters[extent.parameter];
  }
  int64_t& MemoryOf(int array) {
    if (array < kMasterArrays) return placement_.master_memory_bytes;
    return placement_.moment_memory_bytes[MomentOfArray(array)];
  }
  int64_t& RoomOf(int array) { return array < kMasterArrays ? master_room_ : moment_rooms_[MomentOfArray(array)]; }
  absl::Span<const ShardExtent> Trainable() const {
    return absl::MakeConstSpan(placement_.extents).subspan(0, placement_.trainable_count);
  }
  void PlaceArray(int array);
  void PlaceFrozenMaster(ShardExtent& extent);

  const ModelSpec& spec_;
  ShardPlacement& placement_;
  std::vector<BandedArray> arrays_;  // of the trainable extents
  int64_t master_room_ = 0;
  PerMoment<int64_t> moment_rooms_ = {};
};

void Placer::FindExtents(const Layout& layout, int rank, const MovePolicy& policy) {
  std::vector<ShardExtent>& extents = placement_.extents;
  for (int unit = 0; unit < static_cast<int>(spec_.units.size()); ++unit) {
    const auto& parameters = spec_.units[unit].parameters;
    for (int parameter = 0; parameter < static_cast<int>(parameters.size()); ++parameter) {
      const RowRange rows = layout.Extent(unit, parameter, rank);
      if (rows.size() == 0) continue;
      extents.push_back({.unit = unit,
                         .parameter = parameter,
                         .rows = rows,
                         .elements = rows.size() * parameters[parameter].columns(),
                         .row_bytes = RowBytes(parameters[parameter], policy)});
    }
  }
  const auto frozen = std::stable_partition(extents.begin(), extents.end(),
                                            [&](const ShardExtent& extent) { return Spec(extent).trainable; });
  placement_.trainable_count = static_cast<int>(frozen - extents.begin());
}

void Placer::LayOutArrays() {
  for (int array = 0; array < kStateArrays; ++array) arrays_.push_back(LayOut(Trainable(), array));
}

void Placer::CutBands(const BandRule& rule) {
  std::vector<MatrixShape> shapes;
  for (const ShardExtent& extent : Trainable()) shapes.push_back({extent.rows.size(), extent.columns()});
  StateMoves& moves = placement_.moves;
  moves.bands = CutIntoBands(shapes, rule.BandElements(shapes));
  moves.distance = MoveDistance(shapes, moves.bands, arrays_);
  placement_.rule = rule;
}

void Placer::PlaceState() {
  for (int array = 0; array < kStateArrays; ++array) PlaceArray(array);
  for (size_t i = placement_.trainable_count; i < placement_.extents.size(); ++i) {
    PlaceFrozenMaster(placement_.extents[i]);
  }
}

void Placer::PlaceArray(int array) {
  const BandedArray& laid_out = arrays_[array];
  int64_t& memory = MemoryOf(array);
  const int64_t begin = AlignUp(memory, kMoveUnit);
  int64_t size = 0;
  for (int i = 0; i < placement_.trainable_count; ++i) {
    const BandedArray::Part& part = laid_out.parts[i];
    ShardExtent& extent = placement_.extents[i];
    extent.state_offsets[array] = begin + part.offset;
    size = part.offset + extent.rows.size() * part.row_bytes;
  }
  if (size == 0) return;
  memory = begin + AlignUp(size, kExtentAlignment) + placement_.moves.distance;
  RoomOf(array) += placement_.moves.distance;
}

void Placer::PlaceFrozenMaster(ShardExtent& extent) {
  for (int array = 0; array < kMasterArrays; ++array) {
    extent.state_offsets[array] = Append(placement_.master_memory_bytes, extent.rows.size() * extent.row_bytes[array]);
  }
}

void Placer::PlaceGradients(int ranks, bool has_replicas) {
  const bool has_one_term = spec_.pushes_per_step == 1 && ranks == 1 && !has_replicas;
  for (ShardExtent& extent : placement_.extents) {
    if (!Spec(extent).trainable) continue;
    extent.accumulator_type = has_one_term ? Spec(extent).gradient_type : spec_.accumulator_type;
    extent.gradient_offset = Append(placement_.bytes.gradients, extent.AccumulatorBytes());
  }
}

void Placer::CountPlaneCopies() {
  for (const ShardExtent& extent : placement_.extents) {
    if (Spec(extent).master_type.has_value()) continue;
    placement_.plane_copy_bytes += PlaneBytes(Spec(extent), extent.rows.size());
  }
}

void Placer::CountBytes() {
  ShardBytes& bytes = placement_.bytes;
  bytes.master = placement_.master_memory_bytes - master_room_;
  bytes.room = master_room_;
  for (const MomentTraits& moment : kMomentKinds) {
    bytes.moments[moment.kind] = placement_.moment_memory_bytes[moment.kind] - moment_rooms_[moment.kind];
    bytes.room += moment_rooms_[moment.kind];
  }
}

}  // namespace

BandedArray LayOut(absl::Span<const ShardExtent> extents, int array) {
  BandedArray laid_out;
  int64_t end = 0;
  for (const ShardExtent& extent : extents) {
    const int64_t row_bytes = extent.row_bytes[array];
    laid_out.parts.push_back({Append(end, extent.rows.size() * row_bytes), row_bytes});
  }
  return laid_out;
}

std::vector<MuonExtent> MuonExtentsOf(const ModelSpec& spec, const ShardPlacement& placement) {
  std::vector<MuonExtent> extents;
  for (int i = 0; i < placement.trainable_count; ++i) {
    const ShardExtent& extent = placement.extents[i];
    const ParameterSpec& parameter = spec.units[extent.unit].parameters[extent.parameter];
    extents.push_back({{extent.rows.size(), extent.columns()}, MuonMatricesOf(parameter, spec.groups, extent.rows)});
  }
  return extents;
}

int64_t ShardExtent::StateBytes() const {
  return rows.size() * std::accumulate(row_bytes.begin(), row_bytes.end(), int64_t{0});
}

int64_t ShardBytes::Total() const {
  return std::accumulate(moments.begin(), moments.end(), master + gradients + planes + room);
}

ShardBytes& ShardBytes::operator+=(const ShardBytes& other) {
  master += other.master;
  for (int i = 0; i < kMomentCount; ++i) moments.values[i] += other.moments.values[i];
  gradients += other.gradients;
  planes += other.planes;
  room += other.room;
  return *this;
}

std::vector<std::pair<std::string, int64_t>> ShardPlacement::Pieces() const {
  std::vector<std::pair<std::string, int64_t>> pieces{{kMasterPiece, master_memory_bytes}};
  for (const MomentTraits& moment : kMomentKinds) pieces.emplace_back(moment.name, moment_memory_bytes[moment.kind]);
  pieces.emplace_back(kGradientsPiece, bytes.gradients);
  return pieces;
}

ShardPlacement ShardPlacement::Of(const ModelSpec& spec, const Layout& layout, int rank, const MovePolicy& policy) {
  ShardPlacement placement;
  Placer placer(spec, placement);
  placer.FindExtents(layout, rank, policy);
  placer.LayOutArrays();
  if (policy.moves) placer.CutBands(policy.rule);
  placer.PlaceState();
  placer.PlaceGradients(layout.ranks(), policy.has_replicas);
  placement.bytes.planes = layout.arena_bytes(rank);
  placer.CountBytes();
  if (policy.moves) placer.CountPlaneCopies();
  return placement;
}

}  // namespace paramshard::server
