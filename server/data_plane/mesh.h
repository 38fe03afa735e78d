// Connections of one rank to the other members of a group, most of which are in other daemons.
#ifndef PARAMSHARD_SERVER_DATA_PLANE_MESH_H_
#define PARAMSHARD_SERVER_DATA_PLANE_MESH_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/base/steady_time.h"

namespace paramshard::server {

// Member of a mesh.
struct MeshMember {
  int node = 0;
  int rank = 0;  // of the world
};

// "rank 3 (node 1)"
std::string MemberName(const MeshMember& member);

// A piece of memory to send or to receive into.
struct Bytes {
  void* data = nullptr;
  int64_t size = 0;
};

// Bytes that move between this member and one peer. Sizes and order must match the peer's transfer.
struct PeerTransfer {
  int peer = 0;
  std::vector<Bytes> sends;
  std::vector<Bytes> receives;
};

// Exchange is called by one thread at a time, Abort by any thread. After an error the mesh has ended.
class Mesh {
 public:
  virtual ~Mesh() = default;

  int self() const { return self_; }
  int size() const { return static_cast<int>(members_.size()); }
  const MeshMember& member(int index) const { return members_[index]; }
  const std::vector<MeshMember>& members() const { return members_; }

  // Sends and receives everything, and calls `received(peer)` in the order of `transfers` when all of that peer's bytes
  // are in. The memory lies on the member's device, and is not touched after the call. Errors: DEADLINE_EXCEEDED or
  // UNAVAILABLE naming the peer; the status of Abort; errors of the device.
  virtual absl::Status Exchange(absl::Span<const PeerTransfer> transfers, SteadyTime deadline,
                                absl::FunctionRef<void(int peer)> received) = 0;

  // Ends the call in progress at once, and later ones, with `status`. The first status is kept.
  virtual void Abort(const absl::Status& status) = 0;

  // A mesh of the same members for host memory, which ends with this one.
  virtual Mesh& host_mesh() = 0;

  // Name of the transport, a part of the engine's name.
  virtual absl::string_view name() const = 0;

 protected:
  Mesh(std::vector<MeshMember> members, int self) : members_(std::move(members)), self_(self) {}

 private:
  // Constant after construction.
  const std::vector<MeshMember> members_;
  const int self_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DATA_PLANE_MESH_H_
