// Messages of AdminService for saves.
#ifndef PARAMSHARD_SERVER_EDGE_SAVE_MESSAGES_H_
#define PARAMSHARD_SERVER_EDGE_SAVE_MESSAGES_H_

#include "absl/strings/string_view.h"
#include "paramshard/v1/admin.pb.h"
#include "server/models/model_saver.h"

namespace paramshard::server {

v1::Save ToProto(absl::string_view model, const SaveRecord& record);
v1::SaveCounts ToProto(absl::string_view model, const SaveCounts& counts);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_SAVE_MESSAGES_H_
