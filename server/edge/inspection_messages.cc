#include "server/edge/inspection_messages.h"

#include <optional>
#include <string>

#include "common/model/moment_fields.h"
#include "common/rpc/durations.h"

namespace paramshard::server {
namespace {

v1::ExtentDescription Describe(const ExtentDescription& extent, int64_t columns) {
  const PlaneStatistics& planes = extent.planes;
  v1::ExtentDescription proto;
  proto.set_rank(extent.rank);
  proto.set_device(extent.device);
  proto.set_first_row(extent.rows.begin);
  proto.set_rows(extent.rows.size());
  proto.set_columns(columns);
  proto.set_master_amax(planes.amax);
  proto.set_master_norm(planes.Norm());
  proto.set_non_finite_count(planes.non_finite);
  proto.set_zero_count(planes.zeros);
  proto.set_saturated_count(planes.saturated);
  proto.set_relative_error(planes.RelativeError());
  proto.set_max_relative_error(planes.max_relative_error);
  proto.set_max_error(planes.max_error);
  if (planes.scale_min.has_value()) proto.set_scale_min(*planes.scale_min);
  if (planes.scale_max.has_value()) proto.set_scale_max(*planes.scale_max);
  for (const auto& [exponent, count] : planes.scale_counts) {
    v1::ScaleCount& bucket = *proto.add_scale_histogram();
    if (exponent.has_value()) bucket.set_exponent(*exponent);
    bucket.set_count(count);
  }
  for (const MomentTraits& moment : kMomentKinds) {
    const ValueRange& range = extent.moments[moment.kind];
    SetMomentRange(proto, moment.kind, {.norm = range.norm, .min = range.min, .max = range.max});
  }
  return proto;
}

v1::ParameterStats Describe(const ParameterStats& parameter) {
  const PlaneStatistics& planes = parameter.planes;
  v1::ParameterStats proto;
  proto.set_parameter(parameter.parameter->name);
  proto.set_unit(parameter.unit->name);
  proto.set_format(static_cast<v1::Format>(*parameter.parameter->encoding.format));
  proto.set_element(static_cast<v1::Element>(*parameter.parameter->encoding.element));
  proto.set_element_count(planes.elements);
  proto.set_relative_error(planes.RelativeError());
  proto.set_max_relative_error(planes.max_relative_error);
  proto.set_amax(planes.amax);
  proto.set_zero_count(planes.zeros);
  proto.set_saturated_count(planes.saturated);
  proto.set_non_finite_count(planes.non_finite);
  return proto;
}

}  // namespace

v1::ModelSummary ToProto(const ModelSummary& summary) {
  v1::ModelSummary proto;
  proto.set_name(summary.name);
  proto.set_parameter_count(summary.parameter_count);
  proto.set_element_count(summary.element_count);
  proto.set_shard_size(summary.shard_size);
  proto.set_world_size(summary.world_size);
  proto.set_version(summary.numbers.version);
  proto.set_commit_number(summary.numbers.commit_number);
  proto.set_history_id(summary.numbers.history.ToString());
  proto.set_skipped_commits(summary.skipped_commits);
  if (summary.epoch > 0) proto.set_epoch(summary.epoch);
  proto.set_running(summary.running);
  proto.set_attached_ranks(summary.attached_ranks);
  proto.set_last_end(summary.last_end);
  proto.set_engine(summary.engine);
  proto.set_imbalance(summary.imbalance);
  proto.set_unusable(summary.unusable);
  proto.set_origin(static_cast<v1::ValueOrigin>(summary.origin));
  if (summary.restore.has_value()) {
    proto.mutable_restoring()->set_done_bytes(summary.restore->done_bytes);
    proto.mutable_restoring()->set_all_bytes(summary.restore->all_bytes);
  }
  if (summary.rollback.has_value()) {
    proto.mutable_rollback()->set_from_commit_number(summary.rollback->from_commit_number);
    proto.mutable_rollback()->set_commit_number(summary.rollback->commit_number);
    proto.mutable_rollback()->set_why(summary.rollback->why);
  }
  proto.mutable_active_nodes()->Assign(summary.active_nodes.begin(), summary.active_nodes.end());
  return proto;
}

v1::Shard ToProto(const ShardListing& shard) {
  v1::Shard proto;
  proto.set_parameter(shard.parameter->name);
  proto.set_unit(shard.unit->name);
  proto.set_rank(shard.rank);
  proto.set_device(shard.device);
  proto.set_format(static_cast<v1::Format>(*shard.parameter->encoding.format));
  proto.set_first_row(shard.rows.begin);
  proto.set_rows(shard.rows.size());
  proto.set_columns(shard.parameter->columns());
  proto.set_plane_bytes(shard.plane_bytes);
  proto.set_optimizer_bytes(shard.optimizer_bytes);
  proto.set_small(shard.small);
  return proto;
}

v1::DescribeParameterResponse ToProto(const ParameterDescription& description) {
  v1::DescribeParameterResponse proto;
  // Other daemons own all of it.
  if (description.parameter == nullptr) return proto;
  const ParameterSpec& spec = *description.parameter;
  proto.set_parameter(spec.name);
  proto.set_unit(description.unit->name);
  proto.mutable_shape()->Assign(spec.shape.begin(), spec.shape.end());
  proto.set_format(static_cast<v1::Format>(*spec.encoding.format));
  proto.set_element(static_cast<v1::Element>(*spec.encoding.element));
  proto.set_frozen(!spec.trainable);
  proto.set_placement(static_cast<v1::Placement>(spec.placement));
  if (spec.trainable) {
    proto.set_gradient_type(static_cast<v1::GradientType>(spec.gradient_type));
    proto.set_optimizer(static_cast<v1::Optimizer>(spec.optimizer));
  }
  for (const MomentTraits& moment : kMomentKinds) {
    const std::optional<MomentType> type = MomentTypeOf(spec, moment.kind);
    if (type.has_value()) SetMomentType(proto, moment.kind, static_cast<v1::MomentType>(*type));
  }
  if (spec.master_type.has_value()) proto.set_master_type(static_cast<v1::MasterType>(*spec.master_type));
  proto.set_group(spec.group);
  proto.set_version(description.version);
  proto.set_step(description.step);
  if (description.amax.has_value()) proto.set_amax(*description.amax);
  if (description.scale.has_value()) proto.set_scale(*description.scale);
  for (const ExtentDescription& extent : description.extents) *proto.add_extents() = Describe(extent, spec.columns());
  return proto;
}

v1::GetParameterStatsResponse ToProto(const RankedStats& stats) {
  v1::GetParameterStatsResponse proto;
  proto.set_parameter_count(stats.parameter_count);
  for (const ParameterStats& parameter : stats.parameters) *proto.add_parameters() = Describe(parameter);
  return proto;
}

v1::ExtentVerification ToProto(const ExtentVerification& verification) {
  v1::ExtentVerification proto;
  proto.set_parameter(verification.parameter);
  proto.set_rank(verification.rank);
  proto.set_first_row(verification.rows.begin);
  proto.set_rows(verification.rows.size());
  proto.set_planes_match(verification.planes_match);
  proto.set_master_hash(verification.master_hash);
  for (const MomentTraits& moment : kMomentKinds) {
    SetMomentHash(proto, moment.kind, verification.moment_hashes[moment.kind]);
  }
  proto.set_planes_hash(verification.planes_hash);
  return proto;
}

v1::VerifySummary ToProto(const VerifySummary& summary) {
  v1::VerifySummary proto;
  proto.set_version(summary.numbers.version);
  proto.set_commit_number(summary.numbers.commit_number);
  proto.set_extent_count(summary.extent_count);
  proto.set_mismatch_count(summary.mismatch_count);
  proto.set_state_hash(summary.state_hash);
  return proto;
}

v1::BrokenDevice ToProto(const BrokenDevice& broken) {
  v1::BrokenDevice proto;
  proto.set_device(broken.device);
  proto.set_reason(broken.reason);
  return proto;
}

v1::ReaderSummary ToProto(absl::string_view model, const ReaderReport& reader) {
  v1::ReaderSummary proto;
  proto.set_model(std::string(model));
  proto.set_reader(reader.number);
  proto.set_name(reader.name);
  proto.set_pid(reader.pid);
  proto.set_uid(reader.uid);
  proto.set_reading(reader.is_reading);
  proto.set_snapshots(reader.snapshots);
  proto.set_ended_snapshots(reader.ended_snapshots);
  *proto.mutable_held() = DurationToProto(reader.held);
  proto.set_mapped_bytes(reader.mapped_bytes);
  return proto;
}

v1::MemoryUse ToProto(absl::string_view model, const MemoryUse& use) {
  v1::MemoryUse proto;
  proto.set_device(use.device);
  proto.set_model(std::string(model));
  proto.set_memory_class(use.memory_class);
  proto.set_size_bytes(use.size_bytes);
  return proto;
}

}  // namespace paramshard::server
