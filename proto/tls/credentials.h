// gRPC's credentials for connections on which both sides show a certificate.
//
// The files are looked at again every few seconds: new connections are made with what is in them then, and open ones go
// on. While a key and its certificate do not fit, handshakes fail; while a file is missing, the last one holds.
#ifndef PARAMSHARD_PROTO_TLS_CREDENTIALS_H_
#define PARAMSHARD_PROTO_TLS_CREDENTIALS_H_

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/tls/files.h"

namespace paramshard::tls {

// Whether the other side is somebody to speak with, by the URIs of its certificate, whose authority is checked already.
// It is called on gRPC's threads.
using PeerCheck = std::function<absl::Status(const std::vector<std::string>& uris)>;

// Whoever comes must have a certificate. To one who is refused gRPC says nothing: `check` is where that is logged.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const Files& files, const PeerCheck& check);

// No name of a host is compared: `check` says whether the server is the expected one.
std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const Files& files, const PeerCheck& check);

// The URIs of the certificate that the other side of a call has shown; none without TLS.
std::vector<std::string> PeerUris(const grpc::AuthContext& context);
// That certificate itself, in PEM; empty without TLS.
std::string PeerCertificate(const grpc::AuthContext& context);

}  // namespace paramshard::tls

#endif  // PARAMSHARD_PROTO_TLS_CREDENTIALS_H_
