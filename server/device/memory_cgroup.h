// Memory that control groups leave to this process.
#ifndef PARAMSHARD_SERVER_DEVICE_MEMORY_CGROUP_H_
#define PARAMSHARD_SERVER_DEVICE_MEMORY_CGROUP_H_

#include <cstdint>
#include <optional>
#include <string>

namespace paramshard::server {

// Returns the bytes that this process may still allocate before one of its control groups reaches its limit: the least
// of limit - (usage - inactive_file) over the groups up to the root, of version 1 and version 2. No value if no group
// that is mounted here has a limit. `cgroup` and `mountinfo` are files as in /proc/self.
std::optional<int64_t> BytesLeftByCgroups(const std::string& cgroup = "/proc/self/cgroup",
                                          const std::string& mountinfo = "/proc/self/mountinfo");

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DEVICE_MEMORY_CGROUP_H_
