// Roles that may call a method over TCP with certificates.
#ifndef PARAMSHARD_SERVER_EDGE_METHOD_ROLES_H_
#define PARAMSHARD_SERVER_EDGE_METHOD_ROLES_H_

#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "common/tls/identity.h"

namespace paramshard::server {

using Roles = std::set<tls::Role>;

// Returns the roles of a method by its path on the wire, such as "/paramshard.v1.AdminService/Drain"; null if there is
// no such method. Empty: only for callers on this machine, because the method maps memory, reads files or starts a
// program.
const Roles* RolesOf(absl::string_view path);

// Returns text for messages, such as "admin or viewer".
std::string RolesText(const Roles& roles);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_METHOD_ROLES_H_
