// A trainer's session stream, for tests: what it says, and what it hears.
#ifndef PARAMSHARD_TESTS_SERVER_EDGE_TEST_SESSION_H_
#define PARAMSHARD_TESTS_SERVER_EDGE_TEST_SESSION_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "paramshard/v1/trainer.grpc.pb.h"
#include "tests/server/edge/daemon_client.h"

namespace paramshard::server {

v1::AttachRequest MakeAttach(std::string model, int rank);

// A caller of its own, with a stream. One thread.
class TestSession {
 public:
  explicit TestSession(const std::string& socket_dir);
  // Cancels what is left.
  ~TestSession();

  DaemonClient& client() { return client_; }
  // Another stream of the same caller.
  void Reopen();

  void Attach(const v1::AttachRequest& attach);
  void SendCommand(const v1::Command& command);
  void HalfClose() { stream_->WritesDone(); }
  // The stream breaks; its companion connection stays.
  void Cancel() { context_->TryCancel(); }

  // The next message; of no kind when the stream is over.
  v1::SessionResponse Read();
  // Reads `accepted` and `started`; false when something else comes.
  bool AwaitStarted();
  // Reads up to `ended`; without it nothing is set.
  v1::EpochEnded AwaitEnded();
  // Reads what is left, and the stream's status.
  absl::Status Finish();

 private:
  DaemonClient client_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::SessionRequest, v1::SessionResponse>> stream_;
  bool finished_ = false;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_EDGE_TEST_SESSION_H_
