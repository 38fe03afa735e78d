// Refuses calls for which the caller's certificate has not the role, before any message of them is read.
#ifndef PARAMSHARD_SERVER_TRANSPORT_ROLE_GATE_H_
#define PARAMSHARD_SERVER_TRANSPORT_ROLE_GATE_H_

#include <grpcpp/security/auth_metadata_processor.h>

#include <utility>

#include "proto/tls/identity.h"

namespace paramshard::server {

// UNAUTHENTICATED who is no member of the world; UNIMPLEMENTED no such method; PERMISSION_DENIED another role.
class RoleGate final : public grpc::AuthMetadataProcessor {
 public:
  explicit RoleGate(tls::IdentityRules rules) : rules_(std::move(rules)) {}

  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata* consumed,
                       OutputMetadata* response) override;

 private:
  const tls::IdentityRules rules_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRANSPORT_ROLE_GATE_H_
