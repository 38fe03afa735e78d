#include "client/internal/admin_answers.h"

#include <google/protobuf/timestamp.pb.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "common/model/save_state_proto.h"
#include "common/rpc/durations.h"
#include "common/rpc/status.h"
#include "kernels/base/status_macros.h"

namespace paramshard::internal {
namespace {

static_assert(static_cast<int>(ValueOrigin::kLost) == v1::VALUE_ORIGIN_LOST);
static_assert(static_cast<int>(ValueOrigin::kLost) == v1::ValueOrigin_MAX);

absl::Time TimeFromProto(const google::protobuf::Timestamp& time) {
  return absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos());
}

}  // namespace

absl::StatusOr<SaveRecord> SaveFromProto(const v1::Save& save) {
  const std::optional<SaveState> state = SaveStateFromProto(save.state());
  const std::optional<SaveReason> reason = SaveReasonFromProto(save.reason());
  if (!state.has_value() || !reason.has_value()) {
    return absl::InternalError(absl::StrCat("save ", save.model(), ": unknown state ", static_cast<int>(save.state()),
                                            " or reason ", static_cast<int>(save.reason()),
                                            "; daemon and client library may differ"));
  }
  return SaveRecord{.model = save.model(),
                    .number = save.number(),
                    .state = *state,
                    .reason = *reason,
                    .step = save.step(),
                    .history_id = save.history_id(),
                    .path = save.path(),
                    .size_bytes = save.size_bytes(),
                    .written_bytes = save.written_bytes(),
                    .begun_at = TimeFromProto(save.begun_at()),
                    .took = DurationFromProto(save.took()),
                    .copy = DurationFromProto(save.copy()),
                    .stall = DurationFromProto(save.stall()),
                    .error = save.has_error() ? ReasonFromProto(save.error()) : absl::OkStatus()};
}

absl::StatusOr<std::vector<SaveRecord>> SavesFromProto(const v1::ListSavesResponse& response) {
  std::vector<SaveRecord> records;
  for (const v1::Save& save : response.saves()) {
    ASSIGN_OR_RETURN(records.emplace_back(), SaveFromProto(save));
  }
  return records;
}

RestoreSummary RestoreFromProto(const v1::RestoreSummary& summary) {
  return {.path = summary.path(),
          .step = summary.step(),
          .version = summary.version(),
          .history_id = summary.history_id(),
          .parent_history_id = summary.parent_history_id(),
          .saved_world_size = summary.saved_world_size(),
          .saved_shard_size = summary.saved_shard_size(),
          .size_bytes = summary.size_bytes(),
          .took = DurationFromProto(summary.elapsed())};
}

ValueOrigin OriginFromProto(v1::ValueOrigin origin) {
  // A newer daemon may have others.
  return v1::ValueOrigin_IsValid(origin) ? static_cast<ValueOrigin>(origin) : ValueOrigin::kUnknown;
}

std::vector<ModelSummary> ModelsFromProto(const v1::ListModelsResponse& response) {
  std::vector<ModelSummary> models;
  for (const v1::ModelSummary& model : response.models()) {
    models.push_back({.name = model.name(),
                      .parameter_count = model.parameter_count(),
                      .element_count = model.element_count(),
                      .shard_size = model.shard_size(),
                      .world_size = model.world_size(),
                      .version = model.version(),
                      .commit_number = model.commit_number(),
                      .history_id = model.history_id(),
                      .running = model.running(),
                      .attached_ranks = model.attached_ranks(),
                      .unusable = model.unusable(),
                      .origin = OriginFromProto(model.origin())});
    if (model.has_epoch()) models.back().epoch = model.epoch();
  }
  return models;
}

DaemonInfo DaemonFromProto(const v1::GetVersionResponse& response) {
  return {.version = response.version(),
          .pid = response.pid(),
          .devices = {response.devices().begin(), response.devices().end()},
          .first_rank = response.first_rank(),
          .world_size = response.world_size(),
          .node = response.node(),
          .nodes = response.nodes(),
          .started_at = TimeFromProto(response.started_at())};
}

std::vector<MemoryUse> MemoryFromProto(const v1::GetMemoryResponse& response) {
  std::vector<MemoryUse> uses;
  for (const v1::MemoryUse& use : response.uses()) {
    uses.push_back({.device = use.device(),
                    .model = use.model(),
                    .memory_class = use.memory_class(),
                    .size_bytes = use.size_bytes()});
  }
  return uses;
}

}  // namespace paramshard::internal
