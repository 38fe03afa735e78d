#include "tests/server/checkpoints/saved_shards.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "common/checkpoint/step_folder.h"
#include "common/checkpoint/tensor_key.h"
#include "common/checkpoint/verification.h"
#include "common/model/model_spec_difference.h"
#include "gtest/gtest.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using checkpoint::ArrayKind;
using checkpoint::ArrayShape;
using checkpoint::SavedModel;

// The rows of an array that an extent has; of what is of the whole tensor, all of it.
absl::Span<const uint8_t> RowsOf(const SavedModel& model, const ParameterSpec& spec, ArrayKind kind,
                                 const RowRange& rows) {
  const ArrayShape shape = *ShapeOf(spec, kind);
  const absl::Span<const uint8_t> array = model.arrays().at(TensorKey(spec, kind));
  if (shape.rows_per_row > spec.rows()) return array;
  const RowRange range = shape.RowsOf(rows);
  return array.subspan(range.begin * shape.row_bytes(), range.size() * shape.row_bytes());
}

void WritePlanes(const SavedModel& model, const ShardExtent& extent, Shard& shard) {
  const ParameterSpec& spec = shard.extents().Spec(extent);
  const std::vector<ArrayKind> kinds = checkpoint::ArraysOf(spec);
  for (const Plane plane : {Plane::kRowWise, Plane::kColumnWise}) {
    PlaneContent content;
    for (const ArrayKind kind : kinds) {
      const checkpoint::PlaneForm form = *checkpoint::PlaneFormOf(kind);
      if (form.plane != plane) continue;
      const auto bytes = RowsOf(model, spec, kind, extent.rows);
      if (form.piece == checkpoint::PlanePiece::kData) content.data = bytes;
      if (form.piece == checkpoint::PlanePiece::kScales) content.scales = bytes;
      if (form.piece == checkpoint::PlanePiece::kAmax) content.amax = bytes;
    }
    if (!content.data.empty()) PARAMSHARD_CHECK(shard.WritePlane(extent, plane, extent.rows, content).ok());
  }
}

int IndexOf(const ModelSpec& spec, const ShardExtent& extent) {
  int index = extent.parameter;
  for (int unit = 0; unit < extent.unit; ++unit) index += static_cast<int>(spec.units[unit].parameters.size());
  return index;
}

}  // namespace

void WriteState(const SavedModel& model, Shard& shard) {
  for (const ShardExtent& extent : shard.extents()) {
    const ParameterSpec& spec = shard.extents().Spec(extent);
    shard.SetStep(extent, model.common().step_counts[IndexOf(model.spec(), extent)]);
    if (checkpoint::PlanesAreState(spec)) {
      WritePlanes(model, extent, shard);
      continue;
    }
    for (const ArrayKind kind : checkpoint::ArraysOf(spec)) {
      const checkpoint::StateForm form = *checkpoint::StateFormOf(kind);
      PARAMSHARD_CHECK(
          shard.WriteStoredRows(extent, form.tensor, form.form, extent.rows, RowsOf(model, spec, kind, extent.rows))
              .ok());
    }
  }
}

SavedShards::SavedShards(const ModelSpec& spec, uint64_t seed, const Options& options)
    : options_(options), model_(spec, seed), layout_(spec, options.world.shard_size), device_(MakeCpuDevice(0)) {
  for (int rank = 0; rank < world().size; ++rank) {
    auto shard =
        Shard::Create(layout_.spec(), layout_, rank % world().shard_size, device_.get(), {.moves = options.moves});
    PARAMSHARD_CHECK(shard.ok());
    WriteState(model_, **shard);
    shards_.push_back(*std::move(shard));
    auto image = StateImage::Create(layout_, world(), rank, *device_, options.max_header_bytes);
    PARAMSHARD_CHECK(image.ok());
    images_.push_back(*std::move(image));
  }
  Fill();
}

void SavedShards::Fill() {
  for (int rank = 0; rank < world().size; ++rank) {
    PARAMSHARD_CHECK(images_[rank]->Fill(*shards_[rank], SavedModel::ClientState(rank), AnyState).ok());
    PARAMSHARD_CHECK(images_[rank]->Hash(absl::OkStatus).ok());
  }
}

absl::StatusOr<std::vector<PartReport>> SavedShards::WriteParts(DiskCalls* calls, const std::string& folder,
                                                                int64_t step) const {
  const StagingDirectory staging(Disk(calls), folder, IdentityOf(step));
  std::vector<PartReport> reports;
  for (int rank = 0; rank < world().size; rank += options_.ranks_per_node) {
    std::vector<const StateImage*> images;
    for (int i = rank; i < std::min(rank + options_.ranks_per_node, world().size); ++i) {
      images.insert(images.begin(), images_[i].get());  // in any order
      RETURN_IF_ERROR(staging.WriteRank(*images_[i], [](int64_t) { return absl::OkStatus(); }));
    }
    ASSIGN_OR_RETURN(const PartReport report, staging.Finish(rank / options_.ranks_per_node, images));
    reports.insert(reports.begin(), report);
  }
  return reports;
}

checkpoint::CommonState SavedShards::CommonOf(int64_t step) const {
  checkpoint::CommonState common = model_.common();
  common.commit_number = step;
  common.step_counts.clear();
  return common;
}

Publisher::Result SavedShards::Save(DiskCalls* calls, Publisher& publisher, const std::string& folder,
                                    int64_t step) const {
  const absl::Status begun = publisher.Begin(IdentityOf(step), world());
  if (!begun.ok()) return {.status = begun};
  const auto reports = WriteParts(calls, folder, step);
  if (reports.ok()) return publisher.Publish(*reports, CommonOf(step), {.saved_at = absl::FromUnixMillis(step)});
  publisher.Abandon().IgnoreError();
  return {.status = reports.status()};
}

void SavedShards::ExpectSaved(const std::string& folder, int64_t step) const {
  ExpectWhole(folder);
  ASSERT_OK_AND_ASSIGN(const checkpoint::Reader reader, checkpoint::Reader::Open(folder, {.owner = geteuid()}));
  EXPECT_EQ(reader.manifest().spec_fingerprint, ModelSpecFingerprint(spec()));
  EXPECT_EQ(reader.manifest().world, world());
  checkpoint::CommonState common = CommonOf(step);
  common.step_counts = model_.common().step_counts;
  EXPECT_EQ(reader.common(), common);
  for (int rank = 0; rank < world().size; ++rank) {
    const std::string sent = SavedModel::ClientState(rank);
    if (sent.empty()) continue;
    EXPECT_THAT(reader.ClientState(rank), IsOkAndHolds(sent));
  }
  size_t compared = 0;
  for (int unit = 0; unit < static_cast<int>(spec().units.size()); ++unit) {
    const auto& parameters = spec().units[unit].parameters;
    for (int parameter = 0; parameter < static_cast<int>(parameters.size()); ++parameter) {
      for (const ArrayKind kind : checkpoint::ArraysOf(parameters[parameter])) {
        const ArrayShape shape = *ShapeOf(parameters[parameter], kind);
        std::vector<uint8_t> bytes(shape.size_bytes());
        ASSERT_OK(reader.ReadRows(unit, parameter, kind, {0, shape.rows}, absl::MakeSpan(bytes)));
        const std::string key = TensorKey(parameters[parameter], kind);
        EXPECT_EQ(bytes, model_.arrays().at(key)) << key;
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, model_.arrays().size());
}

void ExpectWhole(const std::string& folder) {
  const checkpoint::Verification verification =
      checkpoint::VerifyCheckpoint(folder, {.owner = geteuid()}, [](int64_t, int64_t) {});
  for (const checkpoint::Damage& damage : verification.damages) ADD_FAILURE() << damage.ToStatus(folder);
}

int64_t LatestStepIn(const std::string& model_folder) {
  const auto latest = checkpoint::LatestStep(model_folder);
  EXPECT_OK(latest);
  return latest.ok() ? latest->manifest->step : -1;
}

}  // namespace paramshard::server
