#include "server/cluster/command_ledger.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace paramshard::server {
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
                                                      entry.command, ", rank ", rank, " sent ", command));
  }
  entry.reported[node] = true;
  if (std::find(entry.reported.begin(), entry.reported.end(), false) == entry.reported.end()) open_.erase(it);
  return absl::OkStatus();
}

}  // namespace paramshard::server
