#include "server/process/keeper_program.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/disk.h"
#include "server/base/disk_calls.h"
#include "server/base/exit_codes.h"
#include "server/edge/socket_dir.h"
#include "server/keeper/keeper.h"
#include "server/observe/log.h"
#include "server/process/settings.h"
#include "server/world/decision_log.h"

namespace paramshard::server {
namespace {

absl::StatusOr<std::string> OwnProgram() {
  char path[PATH_MAX];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof(path));
  if (size < 0) return absl::InternalError(absl::StrCat("keeper: /proc/self/exe: ", strerror(errno)));
  return std::string(path, size);
}

// Members are destroyed in reverse order: the locks are released after the last server has ended.
struct KeeperProgram {
  SocketDir socket_dir;
  std::unique_ptr<DiskCalls> disk_calls;
  Disk::Descriptor state_dir_lock;
  std::unique_ptr<Keeper> keeper;
};

absl::StatusOr<KeeperProgram> MakeKeeper(const DaemonConfig& config, const std::vector<std::string>& arguments) {
  ASSIGN_OR_RETURN(std::string program, OwnProgram());
  // The log's thread inherits the signals that the keeper blocks, and so takes none.
  Keeper::Options options;
  options.command = {.program = std::move(program), .arguments = arguments};
  options.file = wire::FileDescriptor(open("/proc/self/exe", O_PATH | O_CLOEXEC));
  ASSIGN_OR_RETURN(SocketDir socket_dir, SocketDir::Acquire(config.socket_dir, !config.allow_users.empty(),
                                                            /*lent=*/-1, SocketDir::kStartWait));
  options.lent = {{.variable = SocketDir::kLockVariable, .fd = socket_dir.lock()}};
  auto disk_calls = std::make_unique<DiskCalls>();
  Disk::Descriptor state_dir_lock;
  if (KeepsDecisions(config)) {
    // The server needs the lock, and reports the error.
    absl::StatusOr<Disk::Descriptor> lock = DecisionLog::Lock(disk_calls.get(), config.state_dir);
    if (lock.ok()) state_dir_lock = *std::move(lock);
    if (state_dir_lock.get() >= 0) {
      options.lent.push_back({.variable = DecisionLog::kLockVariable, .fd = state_dir_lock.get()});
    }
  }
  options.log = [](LogLevel level, absl::string_view event, LogFields fields) { Log(level, event, fields); };
  ASSIGN_OR_RETURN(std::unique_ptr<Keeper> keeper, Keeper::Create(std::move(options)));
  RETURN_IF_ERROR(DetachLog());
  return KeeperProgram{.socket_dir = std::move(socket_dir),
                       .disk_calls = std::move(disk_calls),
                       .state_dir_lock = std::move(state_dir_lock),
                       .keeper = std::move(keeper)};
}

}  // namespace

int RunKeeper(const DaemonConfig& config, const std::vector<std::string>& arguments) {
  const absl::StatusOr<KeeperProgram> program = MakeKeeper(config, arguments);
  if (!program.ok()) Log(LogLevel::kError, "start failed", {{"error", program.status().ToString()}});
  const int exit_code = program.ok() ? program->keeper->Run() : kExitStartFailed;
  FlushLog(kFlushTimeout);
  return exit_code;
}

}  // namespace paramshard::server
