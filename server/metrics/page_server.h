// One page, over plain HTTP.
#ifndef PARAMSHARD_SERVER_METRICS_PAGE_SERVER_H_
#define PARAMSHARD_SERVER_METRICS_PAGE_SERVER_H_

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/wire/handoff.h"
#include "server/base/steady_time.h"

namespace paramshard::server {

// Answers GET and HEAD of one path, one request for each connection, and whatever else with an error. Whoever connects
// is let in, so nothing of it is waited for: a request may take so many bytes and so long, its answer as long again, and
// of too many connections the oldest gives way to the newest. So a client that is slow, or opens any number of
// connections and says nothing, keeps nobody else waiting.
//
//   ASSIGN_OR_RETURN(auto server, PageServer::Start({.listeners = std::move(sockets), .page = [&] { return Text(); }}));
//
// One thread, which makes the page too; it sleeps while nothing happens.
class PageServer {
 public:
  struct Options {
    std::vector<wire::FileDescriptor> listeners;  // that listen, and do not block
    std::string path = "/metrics";
    std::string content_type = "text/plain";
    std::function<std::string()> page;
    // For the whole request; and again for the whole answer.
    absl::Duration patience = absl::Seconds(2);
    size_t most_connections = 8;
  };
  static constexpr size_t kMostRequestBytes = 8192;

  // RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<PageServer>> Start(Options options);
  // Closes all connections.
  ~PageServer();

 private:
  enum class State : uint8_t { kReading, kWriting, kLeaving };
  struct Connection {
    wire::FileDescriptor fd;
    SteadyTime deadline;
    State state = State::kReading;
    std::string request = {};
    std::string answer = {};
    size_t sent = 0;
  };

  explicit PageServer(Options options);
  void Serve();
  std::vector<pollfd> Polled(bool accepts) const;
  // In milliseconds, until the next connection's time is over.
  int PollTimeout() const;
  // False when connections have to wait: there is no descriptor for them.
  bool Accept(int listener);
  void MakeRoom();
  // Goes on with a connection as far as it does not have to wait. Whether it stays.
  bool Advance(Connection& connection) const;
  bool Read(Connection& connection) const;
  bool Write(Connection& connection) const;
  std::string AnswerTo(absl::string_view request) const;

  const Options options_;
  const wire::FileDescriptor stop_;      // an eventfd
  std::vector<Connection> connections_;  // the thread's; the oldest first
  std::thread thread_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_METRICS_PAGE_SERVER_H_
