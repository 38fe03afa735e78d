// Services of a keeper for a daemon.
#ifndef PARAMSHARD_SERVER_PROCESS_KEEPER_SERVICES_H_
#define PARAMSHARD_SERVER_PROCESS_KEEPER_SERVICES_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "server/base/kept_store.h"
#include "server/base/server_command.h"

namespace paramshard::server {

struct KeeperServices {
  // Requests the start of another server after this one has ended. Null without a keeper.
  std::function<absl::Status(const ServerCommandChange& change)> restart = nullptr;
  // Returns true if another server follows, requested by `restart` or by a signal to the keeper.
  std::function<bool()> is_followed = [] { return false; };
  // Store where models outlive this process; outlives the daemon. Null: models end with the process.
  KeptStore* kept = nullptr;
  // Why the last requested restart failed, so that this server was started instead; empty: it did not fail.
  std::string rollback = {};
  // Servers that the keeper has started after its first one; unset: unknown.
  std::optional<int64_t> restarts = {};
  // Descriptor of the keeper's lock of the socket directory, which outlives the daemon; -1: none.
  int socket_dir_lock = -1;
  int state_dir_lock = -1;  // likewise, of the folder with node 0's decisions
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_PROCESS_KEEPER_SERVICES_H_
