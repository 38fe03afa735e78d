#include "server/edge/data_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

std::string TextOf(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address == nullptr) return text;
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof(text));
  } else if (address->sa_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text, sizeof(text));
  }
  return text;
}

// Normalizes an address, which has several spellings.
std::string Normal(const std::string& address) {
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  if (inet_pton(AF_INET6, address.c_str(), &six.sin6_addr) != 1) return address;
  return TextOf(reinterpret_cast<const sockaddr*>(&six));
}

}  // namespace

absl::StatusOr<std::string> InterfaceOf(const std::string& address) {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return absl::InternalError("--data-address: failed to list this machine's interfaces");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(first, freeifaddrs);
  std::vector<std::string> others;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    const std::string text = TextOf(entry->ifa_addr);
    if (text == Normal(address)) return std::string(entry->ifa_name);
    if (!text.empty()) others.push_back(absl::StrCat(text, " (", entry->ifa_name, ")"));
  }
  return absl::FailedPreconditionError(absl::StrCat("--data-address: want an address of this machine, got ", address,
                                                    "; it has ", absl::StrJoin(others, ", ")));
}

absl::Status UseAddressForNccl(const std::string& address) {
  ASSIGN_OR_RETURN(const std::string interface, InterfaceOf(address));
  // "=" excludes interfaces whose name only begins like this.
  setenv("NCCL_SOCKET_IFNAME", absl::StrCat("=", interface).c_str(), /*overwrite=*/0);
  setenv("NCCL_SOCKET_FAMILY", address.find(':') == address.npos ? "AF_INET" : "AF_INET6", /*overwrite=*/0);
  return absl::OkStatus();
}

}  // namespace paramshard::server
