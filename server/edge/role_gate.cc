#include "server/edge/role_gate.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/tls/credentials.h"
#include "kernels/base/status_macros.h"
#include "server/edge/method_roles.h"

namespace paramshard::server {
namespace {

constexpr size_t kMostPathBytes = 256;

absl::Status CheckRole(absl::string_view path, const tls::Identity& caller) {
  const Roles* const roles = RolesOf(path);
  if (roles == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("call: method not found: ", absl::CEscape(path.substr(0, kMostPathBytes))));
  }
  if (roles->contains(caller.role)) return absl::OkStatus();
  const absl::string_view method = path.substr(path.rfind('/') + 1);
  if (roles->empty()) {
    return absl::PermissionDeniedError(absl::StrCat(method, ": want a process on the daemon's machine, got ",
                                                    tls::IdentityText(caller),
                                                    " on the network: use the daemon's Unix sockets"));
  }
  return absl::PermissionDeniedError(
      absl::StrCat(method, ": want a certificate of ", RolesText(*roles), ", got one of ", tls::IdentityText(caller)));
}

grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

}  // namespace

grpc::Status RoleGate::Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata*,
                               OutputMetadata*) {
  const absl::StatusOr<tls::Identity> caller = identify_(tls::PeerUris(*context));
  if (!caller.ok()) return ToGrpc(caller.status());
  const auto path = metadata.find(":path");
  if (path == metadata.end()) return ToGrpc(absl::InternalError("call: a path is required"));
  return ToGrpc(CheckRole({path->second.data(), path->second.size()}, *caller));
}

}  // namespace paramshard::server
