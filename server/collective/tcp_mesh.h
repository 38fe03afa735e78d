// One rank's connections to the other members of a group in other daemons (or this one), over
// Gloo's TCP transport.
#ifndef PARAMSHARD_SERVER_COLLECTIVE_TCP_MESH_H_
#define PARAMSHARD_SERVER_COLLECTIVE_TCP_MESH_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/collective/abort_state.h"

namespace gloo::transport {
class Context;
class Device;
}  // namespace gloo::transport

namespace paramshard::server {

// Who a member is, for messages.
struct MeshMember {
  int node = 0;
  int rank = 0;  // of the world
};

// "rank 3 (node 1)"
std::string MemberName(const MeshMember& member);

// The thread and the local address that all meshes of a daemon share. Ignores SIGPIPE in this
// process unless it is handled: Gloo writes to connections that peers may have closed.
// INVALID_ARGUMENT not an IP address; UNAVAILABLE not one of this host.
absl::StatusOr<std::shared_ptr<gloo::transport::Device>> MakeTcpDevice(const std::string& listen_address);

// A piece of memory to send or to receive into.
struct Bytes {
  void* data = nullptr;
  int64_t size = 0;
};

// What moves between this member and one other. Sizes and order must match what the peer asks for.
struct PeerTransfer {
  int peer = 0;
  std::vector<Bytes> sends;
  std::vector<Bytes> receives;
};

// One thread at a time exchanges; Abort may come from any thread. After an error the mesh is at its
// end. Bytes go straight between the memory given and the connection, and no longer than the call
// takes.
class TcpMesh {
 public:
  // Listens for every other member; members[self] is this one. `timeout` bounds Connect.
  static absl::StatusOr<std::unique_ptr<TcpMesh>> Create(std::shared_ptr<gloo::transport::Device> device,
                                                         std::vector<MeshMember> members, int self,
                                                         absl::Duration timeout);
  ~TcpMesh();

  int self() const { return self_; }
  int size() const { return static_cast<int>(members_.size()); }
  const MeshMember& member(int index) const { return members_[index]; }

  // What `peer` needs to connect to this member, and the connection made with what the peer has
  // said. Both members must call Connect; it waits for the other. UNAVAILABLE names the peer.
  std::string AddressFor(int peer) const;
  absl::Status Connect(int peer, absl::string_view address);

  // Sends and receives everything, and calls `received(peer)` in the order of `transfers` as soon
  // as all of that peer's bytes are in. Errors: DEADLINE_EXCEEDED or UNAVAILABLE naming the peer;
  // what Abort said.
  absl::Status Exchange(absl::Span<const PeerTransfer> transfers, absl::Time deadline,
                        absl::FunctionRef<void(int peer)> received);

  // Ends the call in progress at once and later ones with `status`; the first status stays. The
  // connections close with the call, or with the mesh.
  void Abort(const absl::Status& status);
  // Ends calls of Connect too.
  void Close();

 private:
  class Transfer;

  TcpMesh(std::shared_ptr<gloo::transport::Context> context, std::vector<MeshMember> members, int self);

  absl::Status TryExchange(absl::Span<const PeerTransfer> transfers, absl::Time deadline,
                           absl::FunctionRef<void(int peer)> received);
  // Waits for `count` operations with a peer.
  absl::Status Await(int peer, size_t count, absl::Time deadline, absl::FunctionRef<bool()> wait) const;
  // From now on Abort aborts `transfer` (null: nothing). Returns what ended the mesh before, if
  // anything.
  absl::Status Register(Transfer* transfer);

  // Constant after construction.
  const std::shared_ptr<gloo::transport::Context> context_;
  const std::vector<MeshMember> members_;
  const int self_;

  AbortState end_;
  std::mutex mu_;
  // Guarded by mu_.
  Transfer* transfer_ ABSL_GUARDED_BY(mu_) = nullptr;  // in progress
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_COLLECTIVE_TCP_MESH_H_
