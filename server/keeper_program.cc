#include "server/keeper_program.h"

#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/exit_codes.h"
#include "server/keeper/keeper.h"
#include "server/log/log.h"

namespace paramshard::server {
namespace {

absl::StatusOr<std::string> OwnProgram() {
  char path[PATH_MAX];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof(path));
  if (size < 0) return absl::InternalError(absl::StrCat("keeper: /proc/self/exe: ", strerror(errno)));
  return std::string(path, size);
}

absl::StatusOr<std::unique_ptr<Keeper>> MakeKeeper(const std::vector<std::string>& arguments) {
  ASSIGN_OR_RETURN(std::string program, OwnProgram());
  // The log's thread inherits the signals that the keeper blocks, and so takes none.
  Keeper::Options options;
  options.command = {.program = std::move(program), .arguments = arguments};
  options.log = [](LogLevel level, absl::string_view event, LogFields fields) { Log(level, event, fields); };
  ASSIGN_OR_RETURN(std::unique_ptr<Keeper> keeper, Keeper::Create(std::move(options)));
  RETURN_IF_ERROR(DetachLog());
  return keeper;
}

}  // namespace

int RunKeeper(const std::vector<std::string>& arguments) {
  const absl::StatusOr<std::unique_ptr<Keeper>> keeper = MakeKeeper(arguments);
  if (!keeper.ok()) Log(LogLevel::kError, "start failed", {{"error", keeper.status().ToString()}});
  const int exit_code = keeper.ok() ? (*keeper)->Run() : kExitStartFailed;
  FlushLog(kFlushTimeout);
  return exit_code;
}

}  // namespace paramshard::server
