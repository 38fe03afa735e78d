#include "server/checkpoints/restored_content.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/checkpoint/content_hash.h"
#include "common/model/names.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

using checkpoint::ArrayKind;
using checkpoint::ContentHash;
using checkpoint::ContentHashes;

const HostView& PieceOf(const std::vector<PlaneViews>& planes, const checkpoint::PlaneForm& form) {
  const PlaneViews& plane = planes[form.plane == Plane::kRowWise ? 0 : 1];
  switch (form.piece) {
    case checkpoint::PlanePiece::kData:
      return plane.data;
    case checkpoint::PlanePiece::kScales:
      return plane.scales;
    case checkpoint::PlanePiece::kAmax:
      break;
  }
  return plane.amax;
}

absl::Status AddPlanes(const Shard& shard, const ShardExtent& extent, const ExtentPart& part,
                       absl::Span<const ArrayKind> kinds, ContentHashes& tensors) {
  const ParameterSpec& spec = shard.Spec(extent);
  ASSIGN_OR_RETURN(const std::vector<PlaneViews> planes, shard.PlaneBytes(extent, part.rows));
  for (const ArrayKind kind : kinds) {
    const checkpoint::ArrayShape shape = *checkpoint::ShapeOf(spec, kind);
    // Data of the whole tensor lies with its row 0.
    const RowRange rows = shape.RowsOf(part.rows);
    if (rows.size() == 0) continue;
    tensors[checkpoint::TensorKey(spec, kind)] +=
        checkpoint::HashRows(rows.begin, shape.row_bytes(), PieceOf(planes, *checkpoint::PlaneFormOf(kind)).bytes());
  }
  return absl::OkStatus();
}

absl::StatusOr<ContentHash> HashOf(const Shard& shard, const ShardExtent& extent, const ExtentPart& part,
                                   ArrayKind kind) {
  const ParameterSpec& spec = shard.Spec(extent);
  const checkpoint::StateForm form = *checkpoint::StateFormOf(kind);
  ASSIGN_OR_RETURN(const HostView elements, shard.StoredArray(extent, form.tensor, form.form, part));
  if (kind != ArrayKind::kMaster || spec.master_type != MasterType::kBF16Remainder) {
    return checkpoint::HashRows(part.rows.begin, checkpoint::ShapeOf(spec, kind)->row_bytes(), elements.bytes());
  }
  ASSIGN_OR_RETURN(const HostView rest, shard.StoredArray(extent, form.tensor, TensorForm::kRest, part));
  return checkpoint::HashJoinedRows(part.rows.begin, spec.columns(), elements.bytes(), rest.bytes());
}

}  // namespace

absl::Status AddContent(const Shard& shard, const ShardExtent& extent, const ExtentPart& part,
                        absl::Span<const ArrayKind> kinds, ContentHashes& tensors) {
  const ParameterSpec& spec = shard.Spec(extent);
  absl::ReaderMutexLock lock(&shard.mutex());
  if (checkpoint::PlanesAreState(spec)) return AddPlanes(shard, extent, part, kinds, tensors);
  for (const ArrayKind kind : kinds) {
    ASSIGN_OR_RETURN(const ContentHash hash, HashOf(shard, extent, part, kind));
    tensors[checkpoint::TensorKey(spec, kind)] += hash;
  }
  return absl::OkStatus();
}

absl::Status CheckContent(const ModelSpec& model, const RestorePlan& plan, const ContentHashes& saved,
                          const ContentHashes& restored, int replicas) {
  for (const RestorePlan::Parameter& parameter : plan.parameters()) {
    const ParameterSpec& spec = model.units[parameter.place.unit].parameters[parameter.place.parameter];
    for (const ArrayKind kind : parameter.hashed) {
      const std::string key = checkpoint::TensorKey(spec, kind);
      const auto of_checkpoint = saved.find(key);
      const auto of_shards = restored.find(key);
      ContentHash expected = of_checkpoint == saved.end() ? ContentHash() : of_checkpoint->second;
      expected.sum *= replicas;
      expected.rows *= replicas;
      const ContentHash got = of_shards == restored.end() ? ContentHash() : of_shards->second;
      if (got == expected) continue;
      return absl::DataLossError(absl::StrCat("restore ", DisplayName(model.name), ": tensor ", DisplayName(key),
                                              ": want content hash ", checkpoint::HashText(expected.sum), " of ",
                                              expected.rows, " rows in all replicas, got ",
                                              checkpoint::HashText(got.sum), " of ", got.rows));
    }
  }
  return absl::OkStatus();
}

}  // namespace paramshard::server
