#include "client/internal/sockets.h"

#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/internal/deadline.h"
#include "kernels/base/status_macros.h"

namespace paramshard::internal {
namespace {

const char* NonEmptyVariable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

absl::StatusOr<std::string> SocketDirectory(const std::string& directory) {
  if (!directory.empty()) return directory;
  if (const char* own = NonEmptyVariable("PARAMSHARD_SOCKET_DIR")) return own;
  if (const char* runtime = NonEmptyVariable("XDG_RUNTIME_DIR")) return absl::StrCat(runtime, "/paramshard");
  std::string fallback = absl::StrCat("/tmp/paramshard-", getuid());
  RETURN_IF_ERROR(CheckOwner(fallback, getuid()));
  return fallback;
}

}  // namespace

bool HasSocket(const SocketPaths& paths) {
  struct stat info {};
  return stat(paths.companion.c_str(), &info) == 0 && S_ISSOCK(info.st_mode);
}

absl::Status CheckOwner(const std::string& directory, uid_t user) {
  struct stat info {};
  // Not stat: another user's link could lead to a directory of this user, and elsewhere a moment later.
  if (lstat(directory.c_str(), &info) != 0) {
    return absl::UnavailableError(absl::StrCat("connect: cannot reach a daemon at ", directory, ": ", strerror(errno),
                                               "; start paramshardd, or correct the socket directory"));
  }
  if (S_ISDIR(info.st_mode) && (info.st_uid == user || info.st_uid == 0)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("connect: ", directory, ": want a directory of user ", user, " or root, got ",
                   S_ISDIR(info.st_mode) ? "a directory" : "another file", " of user ", info.st_uid,
                   "; to connect to a daemon of another user, name its socket directory"));
}

absl::StatusOr<SocketPaths> FindSockets(const std::string& directory) {
  SocketPaths paths;
  ASSIGN_OR_RETURN(paths.directory, SocketDirectory(directory));
  paths.grpc = absl::StrCat(paths.directory, "/grpc.sock");
  paths.companion = absl::StrCat(paths.directory, "/handoff.sock");
  constexpr size_t kLongest = sizeof(sockaddr_un::sun_path) - 1;
  if (paths.companion.size() > kLongest) {
    return absl::InvalidArgumentError(
        absl::StrCat("connect: socket directory ", paths.directory, ": want a path of at most ",
                     kLongest - (paths.companion.size() - paths.directory.size()),
                     " bytes, which is a Unix socket's limit, got ", paths.directory.size()));
  }
  return paths;
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const SocketPaths& paths, absl::Duration timeout) {
  grpc::ChannelArguments arguments;
  // Layouts of large models are larger than the default of 4 MiB.
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  std::shared_ptr<grpc::Channel> channel =
      grpc::CreateCustomChannel(absl::StrCat("unix:", paths.grpc), grpc::InsecureChannelCredentials(), arguments);
  if (!channel->WaitForConnected(Deadline::After(timeout).ToGrpc())) {
    return absl::UnavailableError(absl::StrCat("connect: cannot reach a daemon at ", paths.grpc, ": timed out after ",
                                               absl::FormatDuration(timeout)));
  }
  return channel;
}

}  // namespace paramshard::internal
