// Callers: tokens of the companion socket, calls that carry them, and sessions that were opened with them.
#ifndef PARAMSHARD_SERVER_EDGE_CALLERS_H_
#define PARAMSHARD_SERVER_EDGE_CALLERS_H_

#include <grpcpp/server_context.h>
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/edge/companion_server.h"
#include "server/models/model.h"
#include "server/state/publication.h"

namespace paramshard::server {

// Largest number of calls in progress on one companion connection.
inline constexpr int kMaxCallsOfCaller = 64;

// Returns true if the daemon may use its own rights for a caller: the caller is the daemon's user, or root.
bool HasDaemonsRights(uid_t caller);

// Thread-safe.
class Callers {
 public:
  struct Caller {
    std::string token;
    CompanionServer::Peer peer;
    // True for a caller on another machine: the token is the URI of its certificate, without one its address, and the
    // peer is nobody.
    bool is_remote = false;
  };

  // A call in progress, which counts until this object ends. Move-only.
  class Admission {
   public:
    Admission(Callers* callers, Caller caller) : callers_(callers), caller_(std::move(caller)) {}
    Admission(Admission&& other) noexcept
        : callers_(std::exchange(other.callers_, nullptr)), caller_(std::move(other.caller_)) {}
    ~Admission() {
      if (callers_ != nullptr) callers_->Release(caller_);
    }
    const Caller& caller() const { return caller_; }

   private:
    Callers* callers_;
    Caller caller_;
  };

  // `companion` may be set once, before the first call: it calls Gone in turn.
  void SetCompanion(const CompanionServer* companion) { companion_ = companion; }

  // Callers without a token and a certificate.
  enum class Strangers : uint8_t { kAreRefused, kAreAdmitted };
  // Admits a call by its metadata and its connection's certificate alone; the certificate's role has been checked
  // before. UNAUTHENTICATED without a valid token or a certificate, unless strangers are admitted; RESOURCE_EXHAUSTED
  // if the caller has kMaxCallsOfCaller calls in progress.
  absl::StatusOr<Admission> Admit(const grpc::CallbackServerContext& context,
                                  Strangers strangers = Strangers::kAreRefused);
  // Returns OK while the caller's companion connection is open.
  absl::Status CheckPresent(const Caller& caller) const {
    return caller.is_remote ? absl::OkStatus() : companion_->Authenticate(caller.token).status();
  }

  // Opens a session under the caller's token, and ends with it. FAILED_PRECONDITION if the token has a session.
  // `context` is the call's, and valid until Close.
  absl::StatusOr<int64_t> Open(const Caller& caller, grpc::CallbackServerContext* context);
  // Sets the session's model. UNAUTHENTICATED if the caller disconnected meanwhile.
  absl::Status Bind(const Caller& caller, std::shared_ptr<Model> model);
  // Closes the session. Returns its model, if it is set: the last owner of a model waits for its epoch's end.
  [[nodiscard]] std::shared_ptr<Model> Close(const Caller& caller);

  // Takes the caller's reader, which ends with its companion connection. FAILED_PRECONDITION if the caller has one;
  // UNAUTHENTICATED if it disconnected meanwhile.
  absl::Status Keep(const Caller& caller, std::shared_ptr<Publication::Reader> reader);

  // Handles the end of a companion connection: its reader and its session leave their models, and its call ends, which
  // a forked child of the caller could otherwise keep open for ever.
  void Gone(const std::string& token);

  // Kills the process that holds the session.
  absl::Status Kill(int64_t session) const;
  const CompanionServer& companion() const { return *companion_; }

 private:
  struct Session {
    int64_t number = 0;
    std::shared_ptr<Model> model;  // null before Bind
    CompanionServer::Peer peer;
    grpc::CallbackServerContext* context = nullptr;
  };

  absl::StatusOr<Caller> Identify(const grpc::CallbackServerContext& context, Strangers strangers) const;
  void Release(const Caller& caller);

  const CompanionServer* companion_ = nullptr;
  mutable absl::Mutex mu_;
  std::map<std::string, int> calls_ ABSL_GUARDED_BY(mu_);                                     // in progress, by token
  std::map<std::string, Session> sessions_ ABSL_GUARDED_BY(mu_);                              // by token
  std::map<std::string, std::shared_ptr<Publication::Reader>> readers_ ABSL_GUARDED_BY(mu_);  // by token
  int64_t last_session_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_CALLERS_H_
