// Where the pieces of a model lie in a session's memory, from the layout that the daemon sent.
#ifndef PARAMSHARD_CLIENT_INTERNAL_LAYOUT_VIEW_H_
#define PARAMSHARD_CLIENT_INTERNAL_LAYOUT_VIEW_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "paramshard/v1/trainer.pb.h"

namespace paramshard::internal {

struct ByteRange {
  int64_t offset = 0;
  int64_t bytes = 0;
};

// A run of bytes that this rank lands itself: planes[source, source + bytes) goes to slot[target,
// ...); of gradients, slots[source, source + bytes) goes to slots[target, ...).
struct PieceCopy {
  int64_t source = 0;
  int64_t target = 0;
  int64_t bytes = 0;
};

// One plane of one parameter. The scales' ranges, in order, are the compact scales of the whole
// matrix. A number of the whole tensor, which every rank with an extent has, is read once: from the
// owner, or from rank 0 of the group.
struct PlanePlace {
  ByteRange data;
  std::vector<ByteRange> scales;
  ByteRange amax;  // 0 bytes in formats without
};

// Immutable. Units, parameters (within their unit) and ranks (within the shard group) are indices.
class LayoutView {
 public:
  // INTERNAL unless the layout is one of `spec`, which FromProto made. `spec` outlives the view.
  static absl::StatusOr<LayoutView> Create(v1::ModelLayout layout, const ModelSpec* spec, int group_rank);

  int ranks() const { return layout_.ranks(); }
  const v1::ModelLayout& proto() const { return layout_; }
  const std::string& UnitName(int unit) const { return spec_->units[unit].name; }
  // Joined by commas.
  std::string UnitNames(const std::vector<int>& units) const;
  int64_t Rows(int unit, int parameter) const { return Parameter(unit, parameter).rows(); }
  int64_t Columns(int unit, int parameter) const { return Parameter(unit, parameter).columns(); }
  // Slots [0, RingSlots()) serve any unit that fits; the rest are residents' own.
  int RingSlots() const;
  // The resident unit's slot of its own.
  std::optional<int> ResidentSlot(int unit) const;

  // NOT_FOUND.
  absl::StatusOr<int> FindUnit(absl::string_view name) const;
  // The parameter's index in the unit. NOT_FOUND, also for another unit's parameter.
  absl::StatusOr<int> FindParameter(int unit, absl::string_view name) const;

  // The plane that a phase's products read, and whether a gather of the phase brings a plane.
  Plane MainPlane(int unit, int parameter, Phase phase) const;
  bool Brings(int unit, int parameter, Plane plane, Phase phase) const;

  // Bytes of a slot that a gather takes, paddings included; and the bytes that all ranks bring.
  int64_t SlotBytes(int unit, Phase phase) const;
  int64_t GatheredBytes(int unit, Phase phase) const;

  // What this rank contributes to a gather, without empty pieces.
  std::vector<PieceCopy> OwnPieces(int unit, Phase phase) const;

  // This rank's own rows of a unit's gradients in a gradient slot, without those of `absent_parameters` (ascending).
  std::vector<PieceCopy> OwnGradients(int unit, int gradient_slot, absl::Span<const int> absent_parameters) const;

  // Where a plane lies in the slot of a gather of `phase`; and, where the group is one rank, in its
  // arena. Require that the parameter has the plane (and the phase brings it).
  PlanePlace InSlot(int unit, int parameter, Plane plane, Phase phase) const;
  PlanePlace InArena(int unit, int parameter, Plane plane) const;

 private:
  LayoutView(v1::ModelLayout layout, const ModelSpec* spec, int group_rank);

  absl::Status Check() const;
  void IndexNames();

  const v1::ParameterLayout& Parameter(int unit, int parameter) const {
    return layout_.units(unit).parameters(parameter);
  }
  const Encoding& EncodingOf(int unit, int parameter) const { return encodings_[unit][parameter]; }
  int64_t ExtentRows(const v1::ParameterLayout& parameter, int rank) const;
  ByteRange WholeData(int unit, int parameter, int64_t offset) const;
  // The rank whose copy of a tensor's number is read.
  static int NumberRank(const v1::ParameterLayout& parameter) { return parameter.has_owner() ? parameter.owner() : 0; }
  void AppendDataPieces(int unit, int parameter, Phase phase, std::vector<PieceCopy>& pieces) const;

  v1::ModelLayout layout_;
  const ModelSpec* spec_;
  int group_rank_;
  std::vector<std::vector<Encoding>> encodings_;  // by unit and parameter
  absl::flat_hash_map<std::string, int> units_;
  absl::flat_hash_map<std::string, std::pair<int, int>> parameters_;  // unit, index
};

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_LAYOUT_VIEW_H_
