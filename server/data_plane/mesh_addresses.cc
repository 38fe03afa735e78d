#include "server/data_plane/mesh_addresses.h"

#include <algorithm>
#include <cstddef>

#include "paramshard/v1/cluster.pb.h"

namespace paramshard::server {
namespace {

// Longest valid address.
constexpr size_t kMostAddressBytes = 1024;

size_t SharedPrefix(const std::string& a, const std::string& b) {
  const auto [end, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<size_t>(end - a.begin());
}

}  // namespace

std::string EncodeAddresses(const MeshAddresses& addresses) {
  v1::MeshAddresses message;
  std::string before;
  for (const auto& [place, address] : addresses) {
    v1::MeshAddress& next = *message.add_addresses();
    next.set_mesh(place.first);
    next.set_member(place.second);
    const size_t shared = SharedPrefix(before, address);
    next.set_shared_bytes(static_cast<uint32_t>(shared));
    next.set_rest(address.substr(shared));
    before = address;
  }
  return message.SerializeAsString();
}

MeshAddresses DecodeAddresses(absl::string_view bytes) {
  MeshAddresses addresses;
  v1::MeshAddresses message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return addresses;
  std::string before;
  for (const v1::MeshAddress& next : message.addresses()) {
    if (next.shared_bytes() > before.size()) break;
    before = before.substr(0, next.shared_bytes()) + next.rest();
    if (before.size() > kMostAddressBytes) break;
    addresses[{next.mesh(), next.member()}] = before;
  }
  return addresses;
}

}  // namespace paramshard::server
