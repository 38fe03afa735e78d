// Credentials of a daemon's TCP connections: certificates on both ends, or none.
#ifndef PARAMSHARD_SERVER_EDGE_TRANSPORT_H_
#define PARAMSHARD_SERVER_EDGE_TRANSPORT_H_

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/tls/files.h"
#include "common/tls/identity.h"
#include "server/edge/deny_list.h"
#include "server/edge/peer_connections.h"

namespace paramshard::server {

// Constant once created: thread-safe. Logs rejected certificates.
class Transport {
 public:
  struct Options {
    tls::Files files = {};  // none: no encryption
    std::vector<tls::RolePattern> roles = {};
    std::string deny_file = {};  // path of a DenyList; empty: none
    int node = 0;                // of this daemon; its certificate must name the same node
    bool is_mirror = false;      // its certificate must be of role reader
  };

  // FAILED_PRECONDITION as tls::CheckFiles and DenyList::Load; INVALID_ARGUMENT the certificate of another node.
  static absl::StatusOr<Transport> Create(const Options& options, absl::Time now);
  // Without certificates: no encryption.
  Transport() = default;

  bool encrypts() const { return rules_.has_value(); }

  // Return credentials of a server for the other ones of `nodes` nodes, and of a server for remote tools.
  std::shared_ptr<grpc::ServerCredentials> ForNodes(int nodes) const;
  std::shared_ptr<grpc::ServerCredentials> ForTools() const;
  // Returns the book of such a server's connections, which tells which of them must be closed: the peer's certificate
  // has expired, or the deny list names it. Null without certificates.
  std::shared_ptr<PeerConnections> MakePeerConnections() const;
  // Returns credentials of a channel to node 0, which must show the certificate of node 0. Reads the files now or at
  // the first connection.
  std::shared_ptr<grpc::ChannelCredentials> ToCoordinator() const;
  // Returns credentials of a channel from a mirror to a daemon of the training, which must show the certificate of a node.
  std::shared_ptr<grpc::ChannelCredentials> ToNode() const;
  // Returns the certificate of a channel to node 0. Errors of tls::CheckFiles; requires encrypts().
  absl::StatusOr<tls::Certificate> OwnCertificate() const { return tls::CheckFiles(files_, absl::Now()); }

  // Adds advice to an error of the channel to node 0.
  absl::Status WithAdvice(const absl::Status& failure) const;

  // Checks that a caller has the certificate of `node`. PERMISSION_DENIED.
  absl::Status CheckSpeaksFor(const grpc::AuthContext& context, int node) const;

 private:
  std::shared_ptr<grpc::ServerCredentials> ForPeers(std::optional<int> nodes) const;
  std::shared_ptr<grpc::ChannelCredentials> To(std::optional<int> node) const;

  // UNAUTHENTICATED the peer is no member of the world, or is named by the deny list.
  absl::StatusOr<tls::Identity> Identify(const std::vector<std::string>& uris) const;

  tls::Files files_;
  std::optional<tls::IdentityRules> rules_;
  std::shared_ptr<DenyList> denied_;  // null: none
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_TRANSPORT_H_
