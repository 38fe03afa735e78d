#include "client/ctl/ctl.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/ctl/command_line.h"
#include "client/ctl/exit_codes.h"
#include "client/ctl/terminal_text.h"

namespace paramshard::ctl {
namespace {

// "shards tiny", "codec encode in.npy": operation and object.
std::string Subject(const CommandLine& command_line) {
  std::vector<std::string> words = {command_line.info->name};
  for (const std::string& word : command_line.command->Objects()) {
    if (!word.empty()) words.push_back(word);
  }
  return absl::StrJoin(words, " ");
}

int Fail(const CommandLine& command_line, const absl::Status& status, std::ostream& err) {
  err << "paramshardctl: " << TerminalText(absl::StrCat(Subject(command_line), ": ", status.ToString())) << std::endl;
  const bool unanswered = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
  return unanswered && command_line.info->asks_daemon ? kUnreachable : kFailed;
}

}  // namespace

int RunCtl(int argc, const char* const* argv, const Streams& streams) {
  CommandLine command_line;
  const std::optional<int> ended = ParseCommandLine(argc, argv, command_line, streams.out, streams.err);
  if (ended.has_value()) return *ended;
  const absl::StatusOr<int> result = command_line.command->Run(Context(command_line.options, streams));
  return result.ok() ? *result : Fail(command_line, result.status(), streams.err);
}

}  // namespace paramshard::ctl
