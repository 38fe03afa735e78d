#include "server/world/command_ledger.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "server/terms/equal_commands_hint.h"

namespace paramshard::server {

absl::Status CommandLedger::Add(int node, const std::vector<CommandInWords>& commands) {
  if (!asked_.contains(node) || !reported_.insert(node).second) return absl::OkStatus();
  const size_t count = std::min(commands.size(), kMostReportedCommands);
  for (size_t i = 0; i < count; ++i) RETURN_IF_ERROR(Compare(commands[i]));
  if (!Complete()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("commands: want the same from all ranks, got different ones at node ",
                   absl::StrJoin(reported_, ", node "), ", and none of them is remembered"));
}

absl::Status CommandLedger::Compare(const CommandInWords& command) {
  const auto [first, is_first] = commands_.try_emplace(command.number, command);
  if (is_first || first->second.text == command.text) return absl::OkStatus();
  const auto is_of_unit = [](absl::string_view text) {
    return absl::StartsWith(text, "gather ") || absl::StartsWith(text, "push ");
  };
  const bool is_hinted = is_of_unit(first->second.text) || is_of_unit(command.text);
  return absl::FailedPreconditionError(absl::StrCat("command ", command.number, ": rank ", first->second.rank, " sent ",
                                                    first->second.text, ", rank ", command.rank, " sent ", command.text,
                                                    is_hinted ? kEqualCommandsHint : ""));
}

bool CommandLedger::Complete() const {
  return reported_.size() > 1 && std::includes(reported_.begin(), reported_.end(), demanded_.begin(), demanded_.end());
}

}  // namespace paramshard::server
