// How a daemon speaks with what is not on its Unix sockets: with certificates on both ends, or in the clear.
#ifndef PARAMSHARD_SERVER_TRANSPORT_TRANSPORT_H_
#define PARAMSHARD_SERVER_TRANSPORT_TRANSPORT_H_

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
#include "proto/tls/files.h"
#include "proto/tls/identity.h"
#include "server/transport/deny_list.h"
#include "server/transport/peer_connections.h"

namespace paramshard::server {

// Constant once created: thread-safe. Whom it refuses it says in the log.
class Transport {
 public:
  struct Options {
    tls::Files files = {};  // none: in the clear
    std::vector<tls::RolePattern> roles = {};
    std::string deny_file = {};  // path, of a DenyList; empty: none
    int node = 0;                // of this daemon: its certificate says the same
  };

  // FAILED_PRECONDITION as tls::CheckFiles and DenyList::Load; INVALID_ARGUMENT the certificate is not that of this node.
  static absl::StatusOr<Transport> Create(const Options& options, absl::Time now);
  // In the clear.
  Transport() = default;

  bool encrypts() const { return rules_.has_value(); }

  // Of a server for the other nodes of so many; of one for remote tools.
  std::shared_ptr<grpc::ServerCredentials> ForNodes(int nodes) const;
  std::shared_ptr<grpc::ServerCredentials> ForTools() const;
  // What ends connections of such a server before their ends do: when the certificate ends, or the deny list names whom
  // they are with. Null in the clear, where nothing does.
  std::shared_ptr<PeerConnections> MakePeerConnections() const;
  // Of a channel to the daemon that shows the certificate of node 0. Its first connection is made with what is in the
  // files now, or later.
  std::shared_ptr<grpc::ChannelCredentials> ToNodeZero() const;
  // What it would be made with. As tls::CheckFiles; requires encrypts().
  absl::StatusOr<tls::Certificate> OwnCertificate() const { return tls::CheckFiles(files_, absl::Now()); }

  // Adds what to look at to an error of the channel to node 0.
  absl::Status WithAdvice(const absl::Status& failure) const;

  // A node speaks for itself alone. PERMISSION_DENIED its certificate is that of another one.
  absl::Status CheckSpeaksFor(const grpc::AuthContext& context, int node) const;

 private:
  std::shared_ptr<grpc::ServerCredentials> ForPeers(std::optional<int> nodes) const;

  // UNAUTHENTICATED no member of the world, or one that is denied.
  absl::StatusOr<tls::Identity> Identify(const std::vector<std::string>& uris) const;

  tls::Files files_;
  std::optional<tls::IdentityRules> rules_;
  std::shared_ptr<DenyList> denied_;  // null: nobody is
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRANSPORT_TRANSPORT_H_
