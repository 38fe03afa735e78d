#include "server/service/callers.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "proto/wire/handoff.h"

namespace paramshard::server {

absl::StatusOr<Callers::Caller> Callers::Authenticate(const grpc::ServerContext& context) const {
  Caller caller;
  const auto& metadata = context.client_metadata();
  if (const auto found = metadata.find(wire::kTokenMetadata); found != metadata.end()) {
    caller.token = std::string(found->second.data(), found->second.size());
  }
  ASSIGN_OR_RETURN(caller.peer, handoff_->Authenticate(caller.token));
  return caller;
}

absl::StatusOr<int64_t> Callers::Open(const Caller& caller, std::shared_ptr<Model> model,
                                      grpc::ServerContext* context) {
  absl::MutexLock lock(&mu_);
  // Again under the lock: Gone for this token has either run before, and this fails, or finds the session.
  RETURN_IF_ERROR(handoff_->Authenticate(caller.token).status());
  const auto [entry, inserted] = sessions_.try_emplace(caller.token);
  if (!inserted) {
    return absl::FailedPreconditionError(
        absl::StrCat("attach: a companion connection without a session expected, got one that serves session ",
                     entry->second.number));
  }
  entry->second = {.number = ++last_session_, .model = std::move(model), .peer = caller.peer, .context = context};
  return entry->second.number;
}

void Callers::Close(const Caller& caller) {
  absl::MutexLock lock(&mu_);
  sessions_.erase(caller.token);
}

void Callers::Gone(const std::string& token) {
  Session session;
  {
    absl::MutexLock lock(&mu_);
    const auto found = sessions_.find(token);
    if (found == sessions_.end()) return;
    session = found->second;
  }
  session.model->Leave(session.number, absl::AbortedError(absl::StrCat("process ", session.peer.pid, " has gone")));
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
  return handoff_->Kill(token);
}

}  // namespace paramshard::server
