// Keeper's end of the socket to one server: receives requests, and answers each.
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
#include "common/shared_memory/file_descriptor.h"
#include "server/base/server_command.h"
#include "server/keeper/descriptor_store.h"
#include "server/keeper/keeper_message.h"
#include "server/keeper/keeper_packet.h"

namespace paramshard::server {

// Checks everything that a server sends, and never waits for the server: an invalid request is answered with an error
// and changes nothing; while a server does not read an answer, its further requests are not read.
class ServerConnection {
 public:
  struct Requests {
    std::function<void(absl::string_view version)> on_ready;
    // Returns OK if the server may be restarted with that command; null: with its present command.
    std::function<absl::Status(std::optional<ServerCommand> command)> on_restart;
    // Returns why the last requested restart failed; empty if it did not.
    std::function<std::string()> rollback = nullptr;
    // Returns how many servers were started after the first one.
    std::function<int64_t()> restarts = [] { return int64_t{0}; };
  };

  // `kept` outlives the connection.
  ServerConnection(wire::FileDescriptor socket, DescriptorStore* kept, Requests requests)
      : socket_(std::move(socket)), kept_(*kept), requests_(std::move(requests)) {}

  // Descriptor to poll, and its events; -1 once the server has closed its end.
  int fd() const { return socket_.get(); }
  int16_t events() const;

  // Answers pending requests, at most `most`, so that the keeper can do other work. A drop is answered when its memory
  // is free; meanwhile requests and signals to the keeper wait in the kernel.
  void Serve(int most = kAtOnce);

 private:
  static constexpr int kAtOnce = 64;

  struct Answer {
    KeeperMessage message;
    std::vector<int> fds;  // kept descriptors; none is dropped while an answer waits, for no request is read
  };

  bool SendWaiting();
  Answer Handle(KeeperPacket packet);
  absl::Status CheckSequence(const KeeperMessage& request);
  absl::Status Carry(const KeeperMessage& request, KeeperPacket packet);
  Answer Take(const KeeperMessage& request) const;
  Answer LastRestart(const KeeperMessage& request) const;
  Answer Restarts(const KeeperMessage& request) const;

  wire::FileDescriptor socket_;
  DescriptorStore& kept_;
  const Requests requests_;
  uint64_t last_sequence_ = 0;
  std::optional<Answer> waiting_;  // until the server has read earlier answers
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_KEEPER_SERVER_CONNECTION_H_
