#include "server/edge/peer_connections.h"

#include <grpcpp/server_context.h>

#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/tls/credentials.h"
#include "common/tls/files.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

class CallRecorder final : public grpc::experimental::Interceptor {
 public:
  CallRecorder(grpc::ServerContextBase* context, PeerConnections* connections)
      : context_(context), connections_(connections) {}

  // The context knows its call from this hook on.
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(grpc::experimental::InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
      Record();
    }
    methods->Proceed();
  }

 private:
  void Record() {
    const std::string certificate = tls::PeerCertificate(*context_->auth_context());
    if (!connections_->OnCall(context_->peer(), certificate).ok()) context_->TryCancel();
  }

  grpc::ServerContextBase* const context_;
  PeerConnections* const connections_;
};

class CallRecorders final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit CallRecorders(std::shared_ptr<PeerConnections> connections) : connections_(std::move(connections)) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override {
    return new CallRecorder(info->server_context(), connections_.get());
  }

 private:
  const std::shared_ptr<PeerConnections> connections_;
};

absl::Status UnknownConnection(const std::string& address) {
  return absl::UnauthenticatedError(absl::StrCat("no connection was accepted from ", address));
}

}  // namespace

absl::StatusOr<PeerConnections::Peer> PeerConnections::Describe(const std::string& certificate) const {
  ASSIGN_OR_RETURN(tls::Certificate described, tls::ParseCertificate(certificate));
  return Peer{.certificate = certificate,
              .uris = std::move(described.uris),
              .end = After(options_.clock.Now(), described.not_after - options_.now())};
}

void PeerConnections::Begin(const std::string& address) {
  absl::MutexLock lock(&mu_);
  peers_[address].reset();
}

absl::Status PeerConnections::OnCall(const std::string& address, const std::string& certificate) {
  absl::MutexLock lock(&mu_);
  const auto found = peers_.find(address);
  if (found == peers_.end()) {
    log_.Write(LogLevel::kWarning, "cancelled a call on an unknown connection", {{"from", address}});
    return UnknownConnection(address);
  }
  std::optional<Peer>& peer = found->second;
  if (!peer.has_value() || peer->certificate != certificate) {
    ASSIGN_OR_RETURN(peer, Describe(certificate));
  }
  return Check(*peer);
}

absl::Status PeerConnections::Check(const std::string& address) const {
  absl::MutexLock lock(&mu_);
  const auto found = peers_.find(address);
  if (found == peers_.end()) return UnknownConnection(address);
  return found->second.has_value() ? Check(*found->second) : absl::OkStatus();
}

bool PeerConnections::HasHadCall(const std::string& address) const {
  absl::MutexLock lock(&mu_);
  const auto found = peers_.find(address);
  return found != peers_.end() && found->second.has_value();
}

absl::Status PeerConnections::Check(const Peer& peer) const {
  for (const std::string& uri : peer.uris) {
    if (options_.denied != nullptr && options_.denied->Names(uri)) {
      return absl::UnauthenticatedError(absl::StrCat(uri, " is rejected by --tls-deny-file"));
    }
  }
  if (options_.clock.Now() < peer.end) return absl::OkStatus();
  return absl::UnauthenticatedError(absl::StrCat("the connection's certificate of ",
                                                 peer.uris.empty() ? "nobody" : peer.uris[0],
                                                 " has expired: renew it, and connect again"));
}

void PeerConnections::KeepOnly(const std::set<std::string>& addresses) {
  absl::MutexLock lock(&mu_);
  for (auto peer = peers_.begin(); peer != peers_.end();) {
    peer = addresses.contains(peer->first) ? std::next(peer) : peers_.erase(peer);
  }
}

std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> PeerConnections::Interceptors(
    std::shared_ptr<PeerConnections> connections) {
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> factories;
  factories.push_back(std::make_unique<CallRecorders>(std::move(connections)));
  return factories;
}

}  // namespace paramshard::server
