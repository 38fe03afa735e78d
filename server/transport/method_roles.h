// Who may call what, where callers have certificates.
#ifndef PARAMSHARD_SERVER_TRANSPORT_METHOD_ROLES_H_
#define PARAMSHARD_SERVER_TRANSPORT_METHOD_ROLES_H_

#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/tls/identity.h"

namespace paramshard::server {

using Roles = std::set<tls::Role>;

// Of a method by its path on the wire, "/paramshard.v1.AdminService/Drain"; null where there is no such method. Empty:
// of callers on this machine alone, who map memory, or have the daemon read files or start a program.
const Roles* RolesOf(absl::string_view path);

// "admin or viewer": as messages say it.
std::string RolesText(const Roles& roles);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRANSPORT_METHOD_ROLES_H_
