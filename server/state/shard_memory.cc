#include "server/state/shard_memory.h"

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "common/model/muon_matrices.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"
#include "kernels/optim/moment.h"

namespace paramshard::server {

absl::StatusOr<std::unique_ptr<ShardMemory>> ShardMemory::Allocate(ShardExtents extents, ComputeDevice* device,
                                                                   StateMemory* memory, int world_rank) {
  std::unique_ptr<ShardMemory> allocated(new ShardMemory(std::move(extents), device));
  if (memory == nullptr) {
    allocated->own_memory_ = std::make_unique<PrivateStateMemory>();
    memory = allocated->own_memory_.get();
  }
  RETURN_IF_ERROR(allocated->AllocatePieces(*memory, world_rank));
  return allocated;
}

absl::Status ShardMemory::AllocatePieces(StateMemory& memory, int world_rank) {
  const ShardPlacement& placement = extents_.placement();
  std::map<std::string, const Memory*> pieces;
  for (const auto& [name, size_bytes] : placement.Pieces()) {
    ASSIGN_OR_RETURN(pieces[name], memory.Piece(PieceName(world_rank, name), size_bytes, *device_));
  }
  master_ = pieces[ShardPlacement::kMasterPiece];
  gradients_ = pieces[ShardPlacement::kGradientsPiece];
  for (const MomentTraits& moment : kMomentKinds) moments_[moment.kind] = pieces[moment.name];
  if (placement.plane_copy_bytes > 0) {
    ASSIGN_OR_RETURN(plane_copy_, memory.HostPiece(PieceName(world_rank, ShardPlacement::kPlaneCopyPiece),
                                                   placement.plane_copy_bytes));
  }
  ASSIGN_OR_RETURN(planes_, device_->Allocate("paramshard-planes", placement.bytes.planes, Sharing::kReadOnly));
  return absl::OkStatus();
}

ExtentTensors ShardMemory::TensorsOf(const ShardExtent& extent) const {
  const ParameterSpec& spec = extents_.Spec(extent);
  const Encoding encoding = EncodingOf(spec.encoding);
  return {.gradient = spec.trainable ? GradientOf(extent) : MutableGradient(),
          .state = StateOf(extent),
          .rows = extent.rows.size(),
          .columns = spec.columns(),
          .encoding = encoding,
          .row_wise = PlaneOf(extent, Plane::kRowWise),
          .column_wise = HasColumnPlane(encoding.format) ? PlaneOf(extent, Plane::kColumnWise) : MutablePlane{},
          .muon = MuonMatricesOf(spec, extents_.spec().groups, extent.rows)};
}

MutableGradient ShardMemory::GradientOf(const ShardExtent& extent) const {
  return {gradients_->data() + extent.gradient_offset, *extent.accumulator_type};
}

MutablePlane ShardMemory::PlaneOf(const ShardExtent& extent, Plane plane) const {
  const ArenaPlace place = extents_.PlaceInArena(extent, plane);
  const auto at = [&](int64_t offset) { return offset < 0 ? nullptr : planes_.data() + offset; };
  return {.data = at(place.data), .scales = at(place.scales), .amax = at(place.amax)};
}

OptimizerState ShardMemory::StateOf(const ShardExtent& extent) const {
  OptimizerState state;
  for (const MomentTraits& moment : kMomentKinds) {
    const std::optional<MomentType> type = MomentTypeOf(extents_.Spec(extent), moment.kind);
    if (!type.has_value()) continue;
    auto* const scales = reinterpret_cast<float*>(BeginOf(extent, ScaleArray(moment.kind)));
    state.moments[moment.kind] = {.data = BeginOf(extent, MomentArray(moment.kind)),
                                  .scales = HasMomentScales(*type) ? scales : nullptr,
                                  .type = *type};
  }
  if (!extents_.HasMaster(extent)) return state;
  if (extents_.HasRemainder(extent)) {
    state.remainder = reinterpret_cast<int16_t*>(BeginOf(extent, kRemainderArray));
    if (extent.has_weights()) state.weights = reinterpret_cast<uint16_t*>(BeginOf(extent, kWeightArray));
  } else {
    state.master = reinterpret_cast<float*>(BeginOf(extent, kFloatMasterArray));
  }
  return state;
}

uint8_t* ShardMemory::ArrayOf(const ShardExtent& extent, StateTensor tensor, TensorForm form) const {
  const bool is_elements = form == TensorForm::kElements;
  int array = kFloatMasterArray;
  if (const std::optional<MomentKind> kind = MomentOf(tensor); kind.has_value()) {
    array = is_elements ? MomentArray(*kind) : ScaleArray(*kind);
  } else if (extents_.HasRemainder(extent)) {
    if (is_elements && !extent.has_weights()) return PlaneOf(extent, Plane::kRowWise).data;
    array = is_elements ? kWeightArray : kRemainderArray;
  }
  return BeginOf(extent, array);
}

uint8_t* ShardMemory::BeginOf(const ShardExtent& extent, int array) const {
  const Memory* const memory = array < kMasterArrays ? master_ : moments_[MomentOfArray(array)];
  return memory->data() + extent.state_offsets[array];
}

}  // namespace paramshard::server
