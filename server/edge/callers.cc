#include "server/edge/callers.h"

#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/shared_memory/companion_packet.h"
#include "common/tls/credentials.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {

bool HasDaemonsRights(uid_t caller) { return caller == geteuid() || caller == 0; }

absl::StatusOr<Callers::Caller> Callers::Identify(const grpc::CallbackServerContext& context,
                                                  Strangers strangers) const {
  Caller caller;
  constexpr uid_t kNobody = -1;
  // The gate of TLS connections has admitted it.
  if (const std::vector<std::string> uris = tls::PeerUris(*context.auth_context()); !uris.empty()) {
    return Caller{.token = uris[0], .peer = {.pid = 0, .uid = kNobody}, .is_remote = true};
  }
  const auto& metadata = context.client_metadata();
  if (const auto found = metadata.find(wire::kTokenMetadata); found != metadata.end()) {
    caller.token = std::string(found->second.data(), found->second.size());
  } else if (strangers == Strangers::kAreAdmitted) {
    return Caller{.token = context.peer(), .peer = {.pid = 0, .uid = kNobody}, .is_remote = true};
  }
  ASSIGN_OR_RETURN(caller.peer, companion_->Authenticate(caller.token));
  return caller;
}

absl::StatusOr<Callers::Admission> Callers::Admit(const grpc::CallbackServerContext& context, Strangers strangers) {
  ASSIGN_OR_RETURN(Caller caller, Identify(context, strangers));
  absl::MutexLock lock(&mu_);
  int& calls = calls_[caller.token];
  if (calls >= kMaxCallsOfCaller) {
    return absl::ResourceExhaustedError(absl::StrCat("call: one companion connection may have ", kMaxCallsOfCaller,
                                                     " calls in progress, this one has ", calls,
                                                     "; wait until one of them has ended"));
  }
  ++calls;
  return Admission(this, std::move(caller));
}

void Callers::Release(const Caller& caller) {
  absl::MutexLock lock(&mu_);
  const auto calls = calls_.find(caller.token);
  if (--calls->second == 0) calls_.erase(calls);
}

absl::StatusOr<int64_t> Callers::Open(const Caller& caller, grpc::CallbackServerContext* context) {
  absl::MutexLock lock(&mu_);
  const auto [entry, inserted] = sessions_.try_emplace(caller.token);
  if (!inserted) {
    return absl::FailedPreconditionError(
        absl::StrCat("attach: this companion connection already serves session ", entry->second.number));
  }
  entry->second = {.number = ++last_session_, .model = nullptr, .peer = caller.peer, .context = context};
  return entry->second.number;
}

absl::Status Callers::Bind(const Caller& caller, std::shared_ptr<Model> model) {
  absl::MutexLock lock(&mu_);
  // Checks under the lock: Gone for this token has either run before, and this fails, or will find the model.
  RETURN_IF_ERROR(CheckPresent(caller));
  sessions_[caller.token].model = std::move(model);
  return absl::OkStatus();
}

std::shared_ptr<Model> Callers::Close(const Caller& caller) {
  absl::MutexLock lock(&mu_);
  const auto session = sessions_.extract(caller.token);
  return session.empty() ? nullptr : std::move(session.mapped().model);
}

absl::Status Callers::Keep(const Caller& caller, std::shared_ptr<Publication::Reader> reader) {
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(CheckPresent(caller));
  if (!readers_.emplace(caller.token, std::move(reader)).second) {
    return absl::FailedPreconditionError("open reader: this connection has a reader already; connect anew");
  }
  return absl::OkStatus();
}

void Callers::Gone(const std::string& token) {
  Session session;
  decltype(readers_)::node_type reader;  // ends without the lock: it takes that of its publication
  {
    absl::MutexLock lock(&mu_);
    reader = readers_.extract(token);
    const auto found = sessions_.find(token);
    if (found == sessions_.end()) return;
    session = found->second;
  }
  if (session.model != nullptr) {
    session.model->trainers().Leave(
        session.number, absl::AbortedError(absl::StrCat("process ", session.peer.pid, " exited or disconnected")));
  }
  absl::MutexLock lock(&mu_);
  if (const auto found = sessions_.find(token); found != sessions_.end()) found->second.context->TryCancel();
}

absl::Status Callers::Kill(int64_t number) const {
  std::string token;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [candidate, session] : sessions_) {
      if (session.number == number) token = candidate;
    }
  }
  return companion_->Kill(token);
}

}  // namespace paramshard::server
