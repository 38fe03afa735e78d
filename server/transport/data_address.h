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

// Has NCCL use the interface that has the IP address, and addresses of that family, unless the environment says
// otherwise. To be called before NCCL is loaded, which has it use loopback. Errors as above.
absl::Status UseAddressForNccl(const std::string& address);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRANSPORT_DATA_ADDRESS_H_
