// A link between clients and a server of this machine that a test cuts at a byte.
#ifndef PARAMSHARD_TESTS_SUPPORT_RELAY_H_
#define PARAMSHARD_TESTS_SUPPORT_RELAY_H_

#include <cstdint>
#include <list>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/shared_memory/file_descriptor.h"

namespace paramshard::test {

// Passes the bytes of TCP connections on, in threads of its own, from its construction to its end.
class Relay {
 public:
  explicit Relay(int server_port);
  ~Relay();

  // Clients connect to 127.0.0.1 at this port.
  int port() const { return port_; }

  // Passes so many bytes of the server, then nothing in either direction. Neither end notices.
  void CutAfter(int64_t bytes);
  // Waits until all these bytes have been passed.
  bool AwaitCut(absl::Duration timeout);
  // Passes everything again: what has been kept, and what comes.
  void Mend();
  // Mends after it has closed all connections, whose bytes that have been kept are lost.
  void Break();

 private:
  struct Connection {
    wire::FileDescriptor client, server;
    std::vector<std::thread> threads = {};
  };

  void Accept();
  // Until one of the two is closed.
  void Pass(int from, int to, bool is_of_server);
  // Waits for bytes, and until they may be passed; returns how many it has read. 0: it is the end.
  int64_t Take(int from, bool is_of_server, std::vector<char>& piece);
  void CloseAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int server_port_;
  wire::FileDescriptor listener_;
  int port_ = 0;

  absl::Mutex mu_;
  absl::CondVar changed_;
  int64_t left_ ABSL_GUARDED_BY(mu_);  // of the server, until the link is cut
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  int64_t breaks_ ABSL_GUARDED_BY(mu_) = 0;
  std::list<Connection> connections_ ABSL_GUARDED_BY(mu_);
  std::thread accepting_;
};

}  // namespace paramshard::test

#endif  // PARAMSHARD_TESTS_SUPPORT_RELAY_H_
