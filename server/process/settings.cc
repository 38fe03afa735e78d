#include "server/process/settings.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"
#include "server/base/disk.h"
#include "server/base/disk_calls.h"
#include "server/base/own_folder.h"
#include "server/edge/data_address.h"
#include "server/observe/log.h"
#include "server/process/values.h"

namespace paramshard::server {
namespace {

void LogOpenAddress(absl::string_view flag, const std::string& address) {
  Log(LogLevel::kWarning, "address is used without authentication",
      {{"flag", std::string(flag)}, {"address", address}});
}

}  // namespace

std::string PublicAddress(const DaemonConfig& config) {
  const std::string address = config.listen.value_or("");
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || address.substr(colon) == ":0") return "";
  const std::string host = address.substr(0, colon);
  if (host != "0.0.0.0" && host != "[::]") return address;
  if (config.data_address.empty()) return "";
  const bool is_v6 = absl::StrContains(config.data_address, ':');
  return absl::StrCat(is_v6 ? absl::StrCat("[", config.data_address, "]") : config.data_address, address.substr(colon));
}

bool KeepsDecisions(const DaemonConfig& config) {
  return config.node == 0 && config.nodes > 1 && !config.state_dir.empty();
}

absl::StatusOr<std::vector<Device>> DevicesOf(const DaemonConfig& config) {
  std::vector<Device> devices;
  for (const std::string& name : config.devices) {
    ASSIGN_OR_RETURN(devices.emplace_back(), ParseDevice(name));
  }
  return devices;
}

absl::StatusOr<std::vector<uid_t>> UsersOf(const DaemonConfig& config) {
  std::vector<uid_t> users{geteuid()};
  for (const std::string& name : config.allow_users) {
    ASSIGN_OR_RETURN(users.emplace_back(), FindUser(name));
  }
  return users;
}

EngineSettings EnginesOf(const DaemonConfig& config) {
  EngineSettings settings{.mesh_inside = config.local_engine == "mesh",
                          .nccl_library = config.nccl_library,
                          .nccl_psk_file = config.nccl_psk_file};
  if (!config.data_address.empty()) settings.data_address = config.data_address;
  return settings;
}

absl::StatusOr<Transport> TransportOf(const DaemonConfig& config) {
  Transport::Options options{.files = TlsFilesOf(config),
                             .deny_file = config.tls_deny_file,
                             .node = config.node,
                             .is_mirror = !config.mirror.empty()};
  for (const std::string& role : config.tls_roles) {
    ASSIGN_OR_RETURN(options.roles.emplace_back(), tls::ParseRolePattern(role));
  }
  return Transport::Create(options, absl::Now());
}

absl::Status CheckFolders(const DaemonConfig& config) {
  DiskCalls calls;
  const Disk disk(&calls);
  if (!config.save_dir.empty()) RETURN_IF_ERROR(NameFlag("--save-dir", CheckOwnFolder(disk, config.save_dir)));
  if (!KeepsDecisions(config)) return absl::OkStatus();
  return NameFlag("--state-dir", CheckOwnFolder(disk, config.state_dir));
}

absl::Status CheckAddresses(const DaemonConfig& config) {
  const bool coordinates = config.nodes > 1 && config.node == 0;
  for (const auto& [flag, address] :
       {std::pair("--listen", config.listen.value_or("")), std::pair("--metrics-listen", config.metrics_listen),
        std::pair("--cluster-address", coordinates ? config.cluster_address : "")}) {
    if (!address.empty()) RETURN_IF_ERROR(NameFlag(flag, CheckIsLocal(address)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ListeningSocket>> Listen(absl::string_view flag, const std::string& address) {
  absl::StatusOr<std::vector<ListeningSocket>> sockets = ListenOnAddress(address);
  RETURN_IF_ERROR(NameFlag(flag, sockets.status()));
  return sockets;
}

std::vector<std::string> InsecureAddresses(const DaemonConfig& config, bool encrypts) {
  std::vector<std::string> insecure;
  for (const auto& [flag, address] :
       {std::pair("--listen", config.listen.value_or("")),
        std::pair("--cluster-address", config.nodes > 1 ? config.cluster_address : std::string()),
        std::pair("--mirror", config.mirror)}) {
    if (encrypts || address.empty() || IsLoopbackAddress(address)) continue;
    insecure.push_back(absl::StrCat(flag, " ", address));
  }
  return insecure;
}

void WarnOfInsecureAddresses(const DaemonConfig& config, bool encrypts) {
  for (const std::string& insecure : InsecureAddresses(config, encrypts)) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(insecure, ' ');
    LogOpenAddress(parts.first, parts.second);
  }
  if (!config.metrics_listen.empty() && !IsLoopbackAddress(config.metrics_listen)) {
    LogOpenAddress("--metrics-listen", config.metrics_listen);
  }
}

absl::Status NameFlag(absl::string_view flag, const absl::Status& status) {
  return status.ok() ? status : absl::Status(status.code(), absl::StrCat(flag, ": ", status.message()));
}

}  // namespace paramshard::server
