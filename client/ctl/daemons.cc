#include "client/ctl/daemons.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/ctl/exit_codes.h"
#include "client/ctl/json.h"
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

int RunOnce(const CommandLine& command_line, const GlobalOptions& options, const Streams& streams) {
  const absl::StatusOr<int> result = command_line.command->Run(Context(options, streams));
  return result.ok() ? *result : Fail(command_line, result.status(), streams.err);
}

// Returns one daemon's answer. `out` is a JSON document unless the command failed.
nlohmann::ordered_json Answer(const std::string& address, const std::string& out, const std::string& err) {
  nlohmann::ordered_json answer = {{"address", address}};
  nlohmann::ordered_json document = nlohmann::ordered_json::parse(out, nullptr, /*allow_exceptions=*/false);
  if (!document.is_discarded()) answer["answer"] = std::move(document);
  if (!err.empty()) answer["error"] = err;
  return answer;
}

int RunAtEach(const CommandLine& command_line, const Streams& streams) {
  int worst = kSucceeded;
  nlohmann::ordered_json answers = nlohmann::ordered_json::array();
  for (const std::string& address : command_line.options.addresses) {
    GlobalOptions options = command_line.options;
    options.addresses = {address};
    std::ostringstream out;
    std::ostringstream err;
    worst = std::max(worst, RunOnce(command_line, options, {.out = out, .err = err, .progress = streams.progress}));
    if (options.output == Output::kJson) {
      answers.push_back(Answer(address, out.str(), err.str()));
      continue;
    }
    streams.out << (command_line.info->has_comments ? "# == " : "== ") << address << "\n" << out.str() << std::flush;
    if (!err.str().empty()) streams.err << address << ": " << err.str() << std::flush;
  }
  if (command_line.options.output == Output::kJson) streams.out << JsonText(answers);
  return worst;
}

}  // namespace

int RunAtDaemons(const CommandLine& command_line, const Streams& streams) {
  const CommandInfo& info = *command_line.info;
  const bool are_several = info.asks_daemon && !info.asks_all_at_once && command_line.options.addresses.size() > 1;
  return are_several ? RunAtEach(command_line, streams) : RunOnce(command_line, command_line.options, streams);
}

}  // namespace paramshard::ctl
