// The addresses of one daemon's meshes that are meant for another one, as they travel.
#ifndef PARAMSHARD_SERVER_COLLECTIVE_MESH_ADDRESSES_H_
#define PARAMSHARD_SERVER_COLLECTIVE_MESH_ADDRESSES_H_

#include <map>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace paramshard::server {

// By the index of the mesh among those of the daemon that listens, and the member of it that is to connect.
using MeshAddresses = std::map<std::pair<int, int>, std::string>;
// In the place of a mesh: the address of the daemon's LinkListener.
inline constexpr std::pair<int, int> kLinkPlace{-1, -1};

// Addresses of one daemon differ in a few bytes: each is written as what differs from the one before it.
std::string EncodeAddresses(const MeshAddresses& addresses);
// What cannot be read is left out.
MeshAddresses DecodeAddresses(absl::string_view bytes);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_COLLECTIVE_MESH_ADDRESSES_H_
