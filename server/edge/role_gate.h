// Rejects calls whose caller is denied or lacks the role, before any of their messages is read.
#ifndef PARAMSHARD_SERVER_EDGE_ROLE_GATE_H_
#define PARAMSHARD_SERVER_EDGE_ROLE_GATE_H_

#include <grpcpp/security/auth_metadata_processor.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tls/identity.h"

namespace paramshard::server {

// UNIMPLEMENTED no such method; PERMISSION_DENIED another role; errors of `identify` for unknown callers.
class RoleGate final : public grpc::AuthMetadataProcessor {
 public:
  // Returns the owner of a certificate with these URIs, at the time of the call.
  using Identify = std::function<absl::StatusOr<tls::Identity>(const std::vector<std::string>& uris)>;
  explicit RoleGate(Identify identify) : identify_(std::move(identify)) {}

  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata* consumed,
                       OutputMetadata* response) override;

 private:
  const Identify identify_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_ROLE_GATE_H_
