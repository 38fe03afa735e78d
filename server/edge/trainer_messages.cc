#include "server/edge/trainer_messages.h"

#include "common/model/model_spec_proto.h"
#include "common/rpc/status.h"
#include "server/models/inspection.h"

namespace paramshard::server {
namespace {

v1::CommitResult ToProto(const CommitAnswer& answer) {
  v1::CommitResult proto;
  proto.set_commit_number(answer.commit_number);
  proto.set_version(answer.version);
  proto.set_skipped(answer.skipped);
  proto.set_gradient_norm(answer.gradient_norm);
  proto.set_non_finite_count(answer.non_finite_count);
  return proto;
}

}  // namespace

v1::Model ToProto(const Model& model) {
  const ModelSummary summary = Summarize(model);
  v1::Model proto;
  *proto.mutable_spec() = ModelSpecToProto(model.spec());
  proto.set_shard_size(summary.shard_size);
  proto.set_world_size(summary.world_size);
  proto.set_version(summary.numbers.version);
  proto.set_commit_number(summary.numbers.commit_number);
  proto.set_history_id(summary.numbers.history.ToString());
  proto.set_lineage(summary.lineage.ToString());
  proto.set_origin(static_cast<v1::ValueOrigin>(summary.origin));
  proto.set_deletion(model.state().deletion());
  if (summary.epoch > 0) proto.set_epoch(summary.epoch);
  proto.set_running(summary.running);
  proto.set_parameter_count(summary.parameter_count);
  proto.set_element_count(summary.element_count);
  proto.set_imbalance(summary.imbalance);
  return proto;
}

v1::EpochStarted ToProto(const EpochStartInfo& greeting) {
  v1::EpochStarted proto;
  proto.set_epoch(greeting.epoch);
  proto.set_commit_number(greeting.numbers.commit_number);
  proto.set_version(greeting.numbers.version);
  proto.set_client_state(greeting.client_state);
  if (greeting.last_commit.has_value()) *proto.mutable_last_commit() = ToProto(*greeting.last_commit);
  *proto.mutable_spec() = ModelSpecToProto(*greeting.spec);
  proto.set_shard_size(greeting.shard_size);
  proto.set_layout_fingerprint(greeting.layout_fingerprint);
  proto.set_world_size(greeting.world_size);
  proto.set_active_rank(greeting.active_rank);
  proto.set_active_world_size(greeting.active_world_size);
  proto.set_group_rank(greeting.group_rank);
  proto.set_client_lands_own_pieces(greeting.client_lands_own_pieces);
  proto.set_client_lands_own_gradients(greeting.client_lands_own_gradients);
  proto.set_gpu_uuid(greeting.gpu_uuid);
  return proto;
}

v1::EpochEnded ToProto(const EpochEndInfo& farewell) {
  v1::EpochEnded proto;
  if (farewell.epoch.has_value()) proto.set_epoch(*farewell.epoch);
  proto.set_commit_number(farewell.numbers.commit_number);
  proto.set_version(farewell.numbers.version);
  *proto.mutable_why() = StatusToProto(farewell.why);
  return proto;
}

}  // namespace paramshard::server
