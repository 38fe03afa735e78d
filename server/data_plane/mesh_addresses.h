// Addresses of one daemon's meshes for another daemon, and their encoding.
#ifndef PARAMSHARD_SERVER_DATA_PLANE_MESH_ADDRESSES_H_
#define PARAMSHARD_SERVER_DATA_PLANE_MESH_ADDRESSES_H_

#include <map>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace paramshard::server {

// Addresses by the mesh's index in the listening daemon, and the member of the mesh that is to connect.
using MeshAddresses = std::map<std::pair<int, int>, std::string>;
// Key of the address of the daemon's LinkListener.
inline constexpr std::pair<int, int> kLinkPlace{-1, -1};

// Encodes each address as its difference from the one before: addresses of one daemon differ in a few bytes.
std::string EncodeAddresses(const MeshAddresses& addresses);
// Leaves out addresses that cannot be read.
MeshAddresses DecodeAddresses(absl::string_view bytes);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DATA_PLANE_MESH_ADDRESSES_H_
