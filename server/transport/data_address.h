// The network over which engines of several daemons exchange bytes.
#ifndef PARAMSHARD_SERVER_TRANSPORT_DATA_ADDRESS_H_
#define PARAMSHARD_SERVER_TRANSPORT_DATA_ADDRESS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace paramshard::server {

// The name of this machine's interface that has the IP address, such as "eth0". FAILED_PRECONDITION none has it: names
// the addresses that there are.
absl::StatusOr<std::string> InterfaceOf(const std::string& address);

// Has NCCL use that interface, unless the environment names another one. Before its library is loaded.
void UseInterfaceForNccl(const std::string& name);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRANSPORT_DATA_ADDRESS_H_
