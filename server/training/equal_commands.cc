#include "server/training/equal_commands.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/terms/equal_commands_hint.h"
#include "server/training/command_text.h"

namespace paramshard::server {

absl::Status EqualCommands::Add(int rank, const SentCommand& sent, SteadyTime now) {
  const int64_t index = sent.command.number() - first_number_;
  if (index == static_cast<int64_t>(commands_.size())) {
    commands_.push_back(
        {.command = sent.command, .canonical = sent.canonical, .first_rank = rank, .first_arrival = now});
  }
  Command& first = commands_[index];
  ++first.arrived;
  if (sent.canonical == first.canonical) return absl::OkStatus();
  const auto is_end = [](const v1::Command& command) { return command.has_commit() || command.has_discard(); };
  return absl::FailedPreconditionError(absl::StrCat(
      "command ", sent.command.number(), ": rank ", first_rank_ + first.first_rank, " sent ",
      CommandText(spec_, first.command), ", rank ", first_rank_ + rank, " sent ", CommandText(spec_, sent.command),
      is_end(first.command) && is_end(sent.command) ? "" : kEqualCommandsHint));
}

std::optional<EqualCommands::Command> EqualCommands::TakeAgreed() {
  if (commands_.empty() || commands_.front().arrived < ranks_) return std::nullopt;
  Command agreed = std::move(commands_.front());
  commands_.pop_front();
  ++first_number_;
  return agreed;
}

}  // namespace paramshard::server
