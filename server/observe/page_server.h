// Server of one page over plain HTTP.
#ifndef PARAMSHARD_SERVER_OBSERVE_PAGE_SERVER_H_
#define PARAMSHARD_SERVER_OBSERVE_PAGE_SERVER_H_

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
#include "common/shared_memory/file_descriptor.h"
#include "server/base/steady_time.h"

namespace paramshard::server {

// Answers GET and HEAD of one path, one request for each connection, and other requests with an error. It accepts any
// client, so requests are limited in size and time, answers in time, and at the limit of connections the newest
// replaces the oldest: slow or silent clients do not block others.
//
//   ASSIGN_OR_RETURN(auto server, PageServer::Start({.listeners = std::move(sockets), .page = [&] { return Text(); }}));
//
// One thread, which also makes the page; it sleeps while nothing happens.
//
// It is no library's server because Debian 12's, cpp-httplib 0.11, gives each connection a thread of a pool until it
// ends, has timeouts for single reads only, and does not limit connections.
class PageServer {
 public:
  struct Options {
    std::vector<wire::FileDescriptor> listeners;  // listening, non-blocking sockets
    std::string path = "/metrics";
    std::string content_type = "text/plain";
    std::function<std::string()> page;
    // Timeout of the whole request, and of the whole answer.
    absl::Duration timeout = absl::Seconds(2);
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
  // Returns the milliseconds until the next connection times out.
  int PollTimeout() const;
  // Returns false if there is no free descriptor: further connections must wait.
  bool Accept(int listener);
  void MakeRoom();
  // Serves a connection without blocking. Returns false once it must be closed.
  bool Advance(Connection& connection) const;
  bool Read(Connection& connection) const;
  bool Write(Connection& connection) const;
  std::string AnswerTo(absl::string_view request) const;

  const Options options_;
  const wire::FileDescriptor stop_;      // an eventfd
  std::vector<Connection> connections_;  // oldest first; used by the thread only
  std::thread thread_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_OBSERVE_PAGE_SERVER_H_
