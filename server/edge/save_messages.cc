#include "server/edge/save_messages.h"

#include <string>

#include "common/model/save_state_proto.h"
#include "common/rpc/durations.h"
#include "common/rpc/status.h"

namespace paramshard::server {
namespace {

google::protobuf::Timestamp ToProto(absl::Time time) {
  google::protobuf::Timestamp message;
  const absl::Duration since = time - absl::UnixEpoch();
  message.set_seconds(absl::ToInt64Seconds(absl::Floor(since, absl::Seconds(1))));
  message.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(since - absl::Floor(since, absl::Seconds(1)))));
  return message;
}

}  // namespace

v1::Save ToProto(absl::string_view model, const SaveRecord& record) {
  v1::Save save;
  save.set_model(std::string(model));
  save.set_number(record.number);
  save.set_state(SaveStateToProto(record.state));
  save.set_reason(SaveReasonToProto(record.reason));
  save.set_step(record.step);
  if (record.history.value != 0) save.set_history_id(record.history.ToString());
  save.set_size_bytes(record.size_bytes);
  save.set_written_bytes(record.written_bytes);
  *save.mutable_begun_at() = ToProto(record.begun_at);
  *save.mutable_took() = DurationToProto(record.took);
  *save.mutable_copy() = DurationToProto(record.copy);
  *save.mutable_stall() = DurationToProto(record.stall);
  save.set_path(record.path);
  if (!record.status.ok()) *save.mutable_error() = StatusToProto(record.status);
  return save;
}

v1::SaveCounts ToProto(absl::string_view model, const SaveCounts& counts) {
  v1::SaveCounts message;
  message.set_model(std::string(model));
  message.set_published(counts.published);
  message.set_abandoned(counts.abandoned);
  message.set_unknown(counts.unknown);
  message.set_skipped(counts.skipped);
  if (!counts.leftovers.ok()) message.set_leftovers(std::string(counts.leftovers.message()));
  if (!counts.folder.ok()) message.set_folder(std::string(counts.folder.message()));
  return message;
}

}  // namespace paramshard::server
