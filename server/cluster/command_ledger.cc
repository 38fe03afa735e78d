#include "server/cluster/command_ledger.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "paramshard/v1/trainer.pb.h"

namespace paramshard::server {
namespace {

std::string CommandText(absl::string_view serialized) {
  v1::Command command;
  if (!command.ParseFromArray(serialized.data(), static_cast<int>(serialized.size()))) return "an unreadable command";
  return absl::StrCat("{", command.ShortDebugString(), "}");
}

}  // namespace

absl::Status CommandLedger::Add(int node, int64_t number, int rank, absl::string_view command) {
  auto [it, first] = open_.try_emplace(number);
  Entry& entry = it->second;
  if (first) {
    if (open_.size() > kMaxOpenCommands) {
      return absl::ResourceExhaustedError(absl::StrCat("command ", number, " of rank ", rank, ": at most ",
                                                       kMaxOpenCommands, " commands ahead of another node expected"));
    }
    entry = {rank, std::string(command), std::vector<bool>(nodes_)};
  }
  if (entry.command != command) {
    return absl::FailedPreconditionError(absl::StrCat("command ", number, ": rank ", entry.rank, " sent ",
                                                      CommandText(entry.command), ", rank ", rank, " sent ",
                                                      CommandText(command)));
  }
  entry.reported[node] = true;
  if (std::find(entry.reported.begin(), entry.reported.end(), false) == entry.reported.end()) open_.erase(it);
  return absl::OkStatus();
}

}  // namespace paramshard::server
