#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/ctl/commands/commands.h"
#include "client/ctl/options.h"

namespace paramshard::ctl {
namespace {

// A drain, CUDA's start, and some failed starts, after which the keeper goes back to the program before.
constexpr absl::Duration kRestartTimeout = absl::Minutes(2);
// What is saved before another server than the present one starts, and a save that is under way before any does: the
// daemon's default.
constexpr absl::Duration kSaveTimeout = absl::Minutes(10);
// A daemon offers no event for its start to who is not connected.
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

// The answer of another process than `before`.
absl::StatusOr<v1::GetVersionResponse> AwaitNext(const Context& context, int64_t before, absl::Duration timeout) {
  absl::Status last = absl::UnavailableError("the server that was there still answers");
  for (const absl::Time deadline = absl::Now() + timeout; absl::Now() < deadline; absl::SleepFor(kPauseBetweenTries)) {
    absl::StatusOr<v1::GetVersionResponse> version = GetVersion(context);
    if (version.ok() && version->pid() != before) return version;
    if (!version.ok()) last = version.status();
  }
  return absl::DeadlineExceededError(absl::StrCat("restart: a new server expected within ",
                                                  absl::FormatDuration(timeout),
                                                  "; the log says why there is none: ", last.message()));
}

// The server that answers may be the one before once more.
absl::Status CheckNotRolledBack(const v1::GetVersionResponse& after) {
  if (after.rollback().empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("restart: ", after.rollback(), "; the daemon's log says more. As ",
                                                    "before, version ", after.version(), " serves, as process ",
                                                    after.pid()));
}

class Restart final : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    app.add_option("--binary", program_, "the program to start instead of the one that serves now");
    app.add_flag("--lose-models", lose_models_,
                 "the next server has none of this one's models: for another device list");
    app.add_option("flags", flags_, "behind --: the daemon's flags from now on, instead of those that it has");
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
                              .help = "start the daemon's server again, also another version of it",
                              .create = Create<Restart>};

}  // namespace paramshard::ctl
