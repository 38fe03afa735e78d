// Network between the engines of several daemons.
#ifndef PARAMSHARD_SERVER_EDGE_DATA_ADDRESS_H_
#define PARAMSHARD_SERVER_EDGE_DATA_ADDRESS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace paramshard::server {

// Returns the name of this machine's interface with the IP address, such as "eth0". FAILED_PRECONDITION no interface
// has it; the message lists the machine's addresses.
absl::StatusOr<std::string> InterfaceOf(const std::string& address);

// Makes NCCL use the interface with the IP address, and its address family, unless the environment sets others. Call it
// before NCCL is loaded; otherwise NCCL uses loopback. Errors as above.
absl::Status UseAddressForNccl(const std::string& address);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_DATA_ADDRESS_H_
