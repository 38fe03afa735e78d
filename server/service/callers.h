// Who calls: tokens of the companion socket, and the sessions that were opened with them.
#ifndef PARAMSHARD_SERVER_SERVICE_CALLERS_H_
#define PARAMSHARD_SERVER_SERVICE_CALLERS_H_

#include <grpcpp/server_context.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/handoff/handoff_server.h"
#include "server/store/model.h"

namespace paramshard::server {

// Thread-safe.
class Callers {
 public:
  struct Caller {
    std::string token;
    HandoffServer::Peer peer;
  };

  // `handoff` may be set once, before the first call: it calls Gone in turn.
  void SetHandoff(const HandoffServer* handoff) { handoff_ = handoff; }

  // UNAUTHENTICATED without a valid token in the call's metadata.
  absl::StatusOr<Caller> Authenticate(const grpc::ServerContext& context) const;

  // Opens a session under the caller's token, which ends with it. FAILED_PRECONDITION when the token has one. `context`
  // is the call's, and valid until Close.
  absl::StatusOr<int64_t> Open(const Caller& caller, std::shared_ptr<Model> model, grpc::ServerContext* context);
  void Close(const Caller& caller);

  // The companion connection is gone: its session leaves its model, and its call ends, which a forked child of the
  // caller could keep open for ever.
  void Gone(const std::string& token);

  // Kills the process that holds the session.
  absl::Status Kill(int64_t session) const;
  const HandoffServer& handoff() const { return *handoff_; }

 private:
  struct Session {
    int64_t number = 0;
    std::shared_ptr<Model> model;
    HandoffServer::Peer peer;
    grpc::ServerContext* context = nullptr;
  };

  const HandoffServer* handoff_ = nullptr;
  mutable absl::Mutex mu_;
  std::map<std::string, Session> sessions_ ABSL_GUARDED_BY(mu_);  // by token
  int64_t last_session_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_SERVICE_CALLERS_H_
