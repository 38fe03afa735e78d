// gRPC credentials for connections on which both sides show a certificate.
//
// The files are read again every few seconds: new connections use their present content, and open connections stay.
// While a key and its certificate do not fit, handshakes fail; while a file is missing, its last content is used.
#ifndef PARAMSHARD_COMMON_TLS_CREDENTIALS_H_
#define PARAMSHARD_COMMON_TLS_CREDENTIALS_H_

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/tls/files.h"

namespace paramshard::tls {

// Returns OK if the peer is accepted, by the URIs of its certificate, whose authority has been checked. Called on
// gRPC's threads.
using PeerCheck = std::function<absl::Status(const std::vector<std::string>& uris)>;

// Requires a certificate of every client. gRPC does not tell a rejected client the reason: log it in `check`.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const Files& files, const PeerCheck& check);

// Does not compare host names: `check` decides whether the server is the right one.
std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const Files& files, const PeerCheck& check);

// Returns the URIs of the certificate of the other side of a call; none without TLS.
std::vector<std::string> PeerUris(const grpc::AuthContext& context);
// Returns that certificate in PEM; empty without TLS.
std::string PeerCertificate(const grpc::AuthContext& context);

}  // namespace paramshard::tls

#endif  // PARAMSHARD_COMMON_TLS_CREDENTIALS_H_
