// What the members of a mesh say to each other first.
#ifndef PARAMSHARD_SERVER_COLLECTIVE_MESH_TAG_H_
#define PARAMSHARD_SERVER_COLLECTIVE_MESH_TAG_H_

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/base/steady_time.h"
#include "server/collective/mesh.h"

namespace paramshard::server {

// Of one mesh of one epoch: no other mesh of any epoch has the same.
using MeshTag = absl::uint128;

// `epoch`: the model, its history and the number of the epoch; `mesh` names the mesh among those of the epoch. The same
// text makes the same tag in every process.
MeshTag MakeMeshTag(absl::string_view epoch, absl::string_view mesh);

// Says the tag, and who is who, to every other member, and hears what they say: a connection that leads to a member of
// another epoch, of another mesh, or to another member is found before a byte of a model moves. It prevents mix-ups and
// not attacks: whoever is on the network can read tags. All members call it at once, as the first exchange of the mesh.
// UNAVAILABLE naming a member that is another one; as Mesh::Exchange.
absl::Status ExchangeTags(Mesh& mesh, MeshTag tag, SteadyTime deadline);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_COLLECTIVE_MESH_TAG_H_
