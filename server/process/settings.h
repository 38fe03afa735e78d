// Settings of the daemon's parts, from its configuration.
#ifndef PARAMSHARD_SERVER_PROCESS_SETTINGS_H_
#define PARAMSHARD_SERVER_PROCESS_SETTINGS_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/data_plane/engines.h"
#include "server/device/device.h"
#include "server/edge/transport.h"
#include "server/process/config.h"
#include "server/process/connection_acceptor.h"

namespace paramshard::server {

// Returns the address where daemons on other machines reach --listen: with the IP of --data-address where it is any
// interface's. Empty if it is unknown.
std::string PublicAddress(const DaemonConfig& config);

// Returns true for a node 0 that writes its decisions on commits to a folder.
bool KeepsDecisions(const DaemonConfig& config);

// INVALID_ARGUMENT.
absl::StatusOr<std::vector<Device>> DevicesOf(const DaemonConfig& config);
// Returns the users that may connect, the daemon's own first. Errors of FindUser.
absl::StatusOr<std::vector<uid_t>> UsersOf(const DaemonConfig& config);
// Without a link_listener.
EngineSettings EnginesOf(const DaemonConfig& config);
// Errors of Transport::Create and tls::ParseRolePattern.
absl::StatusOr<Transport> TransportOf(const DaemonConfig& config);

// Checks the daemon's folders with CheckOwnFolder.
absl::Status CheckFolders(const DaemonConfig& config);

// Checks addresses before anything else: a daemon that joins a world would notice a wrong address late.
absl::Status CheckAddresses(const DaemonConfig& config);
// Listens at the address of a flag (ListenOnAddress).
absl::StatusOr<std::vector<ListeningSocket>> Listen(absl::string_view flag, const std::string& address);
// Returns flags with addresses off loopback that are used without certificates. `encrypts`: there are certificates.
std::vector<std::string> InsecureAddresses(const DaemonConfig& config, bool encrypts);
// Logs them, and the metrics page, which never uses certificates.
void WarnOfInsecureAddresses(const DaemonConfig& config, bool encrypts);

// Names the flag in an error.
absl::Status NameFlag(absl::string_view flag, const absl::Status& status);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_PROCESS_SETTINGS_H_
