// Tags that the members of a mesh exchange first.
#ifndef PARAMSHARD_SERVER_DATA_PLANE_MESH_TAG_H_
#define PARAMSHARD_SERVER_DATA_PLANE_MESH_TAG_H_

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/base/steady_time.h"
#include "server/data_plane/mesh.h"

namespace paramshard::server {

// Tag of one mesh of one epoch, unique over all meshes and epochs.
using MeshTag = absl::uint128;

// Makes a tag, the same in every process. `epoch`: the model, its history and the epoch's number; `mesh`: name of the
// mesh in the epoch.
MeshTag MakeMeshTag(absl::string_view epoch, absl::string_view mesh);

// Exchanges the tag and both members' numbers with every other member, so that a connection to another epoch, mesh or
// member is found before a byte of a model moves. It prevents mix-ups, not attacks: anyone on the network can read
// tags. All members call it at once, as the mesh's first exchange. UNAVAILABLE naming a wrong member; errors of
// Mesh::Exchange.
absl::Status ExchangeTags(Mesh& mesh, MeshTag tag, SteadyTime deadline);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DATA_PLANE_MESH_TAG_H_
