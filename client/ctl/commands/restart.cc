#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/ctl/commands.h"
#include "client/ctl/options.h"

namespace paramshard::ctl {
namespace {

// Time for a drain, CUDA's start, and some failed starts, after which the keeper goes back to the old program.
constexpr absl::Duration kRestartTimeout = absl::Minutes(2);
// Time for the save before a different program starts, and for a save in progress before any start: the daemon's
// default.
constexpr absl::Duration kSaveTimeout = absl::Minutes(10);
// A client without a connection gets no event when the daemon starts.
constexpr absl::Duration kPauseBetweenTries = absl::Milliseconds(50);

std::string RestartText(const v1::GetVersionResponse& response) {
  return absl::StrCat("version ", response.version(), " serves as process ", response.pid(), "\n");
}

absl::StatusOr<v1::GetVersionResponse> GetVersion(const Context& context) {
  ASSIGN_OR_RETURN(AdminClient client, context.Connect());
  v1::GetVersionResponse version;
  RETURN_IF_ERROR(client.Call(&AdminClient::Stub::GetVersion, v1::GetVersionRequest(), version));
  return version;
}

// Waits for the answer of another process than `before`.
absl::StatusOr<v1::GetVersionResponse> AwaitNext(const Context& context, int64_t before, absl::Duration timeout) {
  absl::Status last = absl::UnavailableError("the old server still answers");
  for (const absl::Time deadline = absl::Now() + timeout; absl::Now() < deadline; absl::SleepFor(kPauseBetweenTries)) {
    absl::StatusOr<v1::GetVersionResponse> version = GetVersion(context);
    if (version.ok() && version->pid() != before) return version;
    if (!version.ok()) last = version.status();
  }
  return absl::DeadlineExceededError(absl::StrCat("restart: timed out after ", absl::FormatDuration(timeout),
                                                  " without a new server; see the daemon's log: ", last.message()));
}

// The keeper may have started the old program again.
absl::Status CheckNotRolledBack(const v1::GetVersionResponse& after) {
  if (after.rollback().empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("restart: ", after.rollback(), "; see the daemon's log. As ",
                                                    "before, version ", after.version(), " serves, as process ",
                                                    after.pid()));
}

class Restart final : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    app.add_option("--binary", program_, "the program to start instead of the present one");
    app.add_flag("--lose-models", lose_models_, "start without the present models: for another device list");
    app.add_option("flags", flags_, "after --: the daemon's new flags, instead of its present ones");
  }
  absl::StatusOr<int> Run(const Context& context) override;

 private:
  v1::RestartRequest Request() const;

  std::string program_;
  std::vector<std::string> flags_;
  bool lose_models_ = false;
};

v1::RestartRequest Restart::Request() const {
  v1::RestartRequest request;
  std::error_code error;
  // The daemon has another working directory.
  if (!program_.empty()) request.set_program(std::filesystem::absolute(program_, error).string());
  for (const std::string& flag : flags_) request.mutable_arguments()->add_values(flag);
  request.set_lose_models(lose_models_);
  return request;
}

absl::StatusOr<int> Restart::Run(const Context& context) {
  ASSIGN_OR_RETURN(const v1::GetVersionResponse before, GetVersion(context));
  {
    ASSIGN_OR_RETURN(AdminClient client, context.Connect());
    v1::RestartResponse response;
    RETURN_IF_ERROR(client.Call(&AdminClient::Stub::Restart, Request(), response));
  }
  const absl::Duration timeout = context.options().timeout.value_or(kRestartTimeout + kSaveTimeout);
  ASSIGN_OR_RETURN(const v1::GetVersionResponse after, AwaitNext(context, before.pid(), timeout));
  RETURN_IF_ERROR(CheckNotRolledBack(after));
  return context.Write(after, RestartText);
}

}  // namespace

const CommandInfo kRestart = {.name = "restart",
                              .help = "restart the daemon's server, with the same program or another one",
                              .create = Create<Restart>};

}  // namespace paramshard::ctl
