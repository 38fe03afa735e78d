// The keeper's end of the socket to one server: hears requests, and answers each.
#ifndef PARAMSHARD_SERVER_KEEPER_SERVER_CONNECTION_H_
#define PARAMSHARD_SERVER_KEEPER_SERVER_CONNECTION_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/wire/handoff.h"
#include "server/base/server_command.h"
#include "server/keeper/keeper_message.h"
#include "server/keeper/keeper_packet.h"
#include "server/keeper/kept_descriptors.h"

namespace paramshard::server {

// Nothing that a server sends is believed before it is checked, and nothing that it does or leaves undone is waited
// for: a request that is wrong is answered with what is wrong and leaves what is kept as it was; while a server does
// not read an answer, no further request of it is heard.
class ServerConnection {
 public:
  struct Requests {
    std::function<void(absl::string_view version)> on_ready;
    // Whether the server may be restarted with that command; nothing: with the one that it has.
    std::function<absl::Status(std::optional<ServerCommand> command)> on_restart;
    // Why the last restart that was asked for was given up; empty: it was not.
    std::function<std::string()> rollback = nullptr;
    // How many servers were started after the first one.
    std::function<int64_t()> restarts = [] { return int64_t{0}; };
  };

  // `kept` outlives the connection.
  ServerConnection(wire::FileDescriptor socket, KeptDescriptors* kept, Requests requests)
      : socket_(std::move(socket)), kept_(*kept), requests_(std::move(requests)) {}

  // What to poll, and for which events; -1 once the server has closed its end.
  int fd() const { return socket_.get(); }
  int16_t events() const;

  // Answers what has come, at most `most` requests: then others have their turn. A drop is answered when its memory is
  // free. What comes meanwhile, signals of the keeper too, waits where the kernel keeps it.
  void Serve(int most = kAtOnce);

 private:
  static constexpr int kAtOnce = 64;

  struct Answer {
    KeeperMessage message;
    std::vector<int> fds;  // kept ones; they stay while an answer waits, for nothing else is heard
  };

  bool SendWaiting();
  Answer Handle(KeeperPacket packet);
  absl::Status CheckSequence(const KeeperMessage& request);
  absl::Status Carry(const KeeperMessage& request, KeeperPacket packet);
  Answer Take(const KeeperMessage& request) const;
  Answer LastRestart(const KeeperMessage& request) const;
  Answer Restarts(const KeeperMessage& request) const;

  wire::FileDescriptor socket_;
  KeptDescriptors& kept_;
  const Requests requests_;
  uint64_t last_sequence_ = 0;
  std::optional<Answer> waiting_;  // the server has not read those before
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_KEEPER_SERVER_CONNECTION_H_
