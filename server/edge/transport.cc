#include "server/edge/transport.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/tls/connect_advice.h"
#include "common/tls/credentials.h"
#include "kernels/base/status_macros.h"
#include "server/edge/role_gate.h"
#include "server/observe/log.h"
#include "server/observe/log_throttle.h"

namespace paramshard::server {
namespace {

// More than one, so that a peer that retries does not hide another peer.
constexpr int kRefusalsAMinute = 5;

// Logs a refusal, because the peer only sees that its socket was closed. Throttled, because any peer may retry.
absl::Status Logged(const absl::Status& refusal) {
  static auto* const throttle = new LogThrottle(absl::Minutes(1), Clock::Steady(), kRefusalsAMinute);
  if (refusal.ok()) return refusal;
  if (const std::optional<int64_t> count = throttle->Pass()) {
    Log(LogLevel::kWarning, "certificate rejected", {{"why", std::string(refusal.message())}}, *count);
  }
  return refusal;
}

absl::Status CheckIsOneOf(int nodes, const tls::Identity& peer) {
  RETURN_IF_ERROR(CheckIsNode(peer));
  if (peer.node < nodes) return absl::OkStatus();
  return absl::UnauthenticatedError(absl::StrCat("want the certificate of a node below --nodes (", nodes,
                                                 "), got the certificate of ", tls::IdentityText(peer)));
}

absl::Status CheckIsOwn(const Transport::Options& options, const tls::Identity& own) {
  if (options.is_mirror) {
    if (own.role == tls::Role::kReader) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("--tls-cert ", options.files.cert,
                                                   ": want a certificate of reader for a mirror, got one of ",
                                                   tls::IdentityText(own)));
  }
  const absl::Status is_own = CheckIsNode(own, options.node);
  if (is_own.ok()) return is_own;
  return absl::InvalidArgumentError(absl::StrCat("--tls-cert ", options.files.cert, ": ", is_own.message(),
                                                 "; --node sets the number of this daemon"));
}

}  // namespace

absl::StatusOr<Transport> Transport::Create(const Options& options, absl::Time now) {
  Transport transport;
  if (!options.files.any()) return transport;
  ASSIGN_OR_RETURN(transport.rules_, tls::IdentityRules::Load(options.files, options.roles, now));
  RETURN_IF_ERROR(CheckIsOwn(options, transport.rules_->own()));
  if (!options.deny_file.empty()) {
    ASSIGN_OR_RETURN(transport.denied_, DenyList::Load(options.deny_file));
  }
  transport.files_ = options.files;
  return transport;
}

std::shared_ptr<grpc::ServerCredentials> Transport::ForNodes(int nodes) const { return ForPeers(nodes); }
std::shared_ptr<grpc::ServerCredentials> Transport::ForTools() const { return ForPeers(/*nodes=*/std::nullopt); }

absl::StatusOr<tls::Identity> Transport::Identify(const std::vector<std::string>& uris) const {
  ASSIGN_OR_RETURN(tls::Identity peer, rules_->Identify(uris));
  if (denied_ == nullptr || !denied_->Names(peer.uri)) return peer;
  return absl::UnauthenticatedError(absl::StrCat(peer.uri, " is rejected by --tls-deny-file"));
}

std::shared_ptr<PeerConnections> Transport::MakePeerConnections() const {
  if (!encrypts()) return nullptr;
  return std::make_shared<PeerConnections>(PeerConnections::Options{.denied = denied_});
}

std::shared_ptr<grpc::ServerCredentials> Transport::ForPeers(std::optional<int> nodes) const {
  if (!encrypts()) return grpc::InsecureServerCredentials();
  const auto check = [self = *this, nodes](const std::vector<std::string>& uris) -> absl::Status {
    const absl::StatusOr<tls::Identity> peer = self.Identify(uris);
    if (!peer.ok()) return Logged(peer.status());
    return nodes.has_value() ? Logged(CheckIsOneOf(*nodes, *peer)) : absl::OkStatus();
  };
  std::shared_ptr<grpc::ServerCredentials> credentials = tls::MakeServerCredentials(files_, check);
  credentials->SetAuthMetadataProcessor(
      std::make_shared<RoleGate>([self = *this](const std::vector<std::string>& uris) { return self.Identify(uris); }));
  return credentials;
}

std::shared_ptr<grpc::ChannelCredentials> Transport::To(std::optional<int> node) const {
  if (!encrypts()) return grpc::InsecureChannelCredentials();
  return tls::MakeChannelCredentials(files_,
                                     [self = *this, node](const std::vector<std::string>& uris) -> absl::Status {
                                       const absl::StatusOr<tls::Identity> peer = self.Identify(uris);
                                       return Logged(peer.ok() ? CheckIsNode(*peer, node) : peer.status());
                                     });
}

std::shared_ptr<grpc::ChannelCredentials> Transport::ToCoordinator() const { return To(0); }
std::shared_ptr<grpc::ChannelCredentials> Transport::ToNode() const { return To(std::nullopt); }

absl::Status Transport::WithAdvice(const absl::Status& failure) const {
  const std::string advice = failure.ok() ? "" : tls::ConnectAdvice(failure.message(), files_);
  return advice.empty() ? failure : absl::Status(failure.code(), absl::StrCat(failure.message(), "; ", advice));
}

absl::Status Transport::CheckSpeaksFor(const grpc::AuthContext& context, int node) const {
  if (!encrypts()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const tls::Identity peer, rules_->Identify(tls::PeerUris(context)));
  if (peer.role == tls::Role::kNode && peer.node == node) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("cluster: call of node ", node, ": want the certificate of node/",
                                                  node, ", got the certificate of ", tls::IdentityText(peer)));
}

}  // namespace paramshard::server
