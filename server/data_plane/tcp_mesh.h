// Mesh over Gloo's TCP transport.
#ifndef PARAMSHARD_SERVER_DATA_PLANE_TCP_MESH_H_
#define PARAMSHARD_SERVER_DATA_PLANE_TCP_MESH_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/base/steady_time.h"
#include "server/data_plane/abort_state.h"
#include "server/data_plane/mesh.h"

namespace gloo::transport {
class Context;
class Device;
}  // namespace gloo::transport

namespace paramshard::server {

// Makes the thread and the local address that all meshes of a daemon share. Ignores SIGPIPE in this process unless it
// is handled: Gloo writes to connections that peers may have closed. INVALID_ARGUMENT not an IP address; UNAVAILABLE
// not an address of this host.
absl::StatusOr<std::shared_ptr<gloo::transport::Device>> MakeTcpDevice(const std::string& listen_address);

// Moves bytes straight between host memory and the connections, which close when a call fails, or with the mesh.
class TcpMesh final : public Mesh {
 public:
  // Listens for every other member; members[self] is this one. `timeout` bounds Connect.
  static absl::StatusOr<std::unique_ptr<TcpMesh>> Create(std::shared_ptr<gloo::transport::Device> device,
                                                         std::vector<MeshMember> members, int self,
                                                         absl::Duration timeout);
  ~TcpMesh() override;

  // AddressFor returns the address at which `peer` connects to this member, which stays the same. Connect connects to
  // the peer's address for this member; both members must call it, and it waits for the other. UNAVAILABLE names the
  // peer.
  const std::string& AddressFor(int peer) const { return addresses_[peer]; }
  absl::Status Connect(int peer, absl::string_view address);

  absl::Status Exchange(absl::Span<const PeerTransfer> transfers, SteadyTime deadline,
                        absl::FunctionRef<void(int peer)> received) override;
  void Abort(const absl::Status& status) override;
  Mesh& host_mesh() override { return *this; }
  absl::string_view name() const override { return "gloo"; }

  // Ends every call, also of Connect, and the connections.
  void Close();

 private:
  class Transfer;

  TcpMesh(std::shared_ptr<gloo::transport::Context> context, std::vector<MeshMember> members, int self);

  absl::Status TryExchange(absl::Span<const PeerTransfer> transfers, SteadyTime deadline,
                           absl::FunctionRef<void(int peer)> received);
  // Waits for `count` operations with a peer.
  absl::Status Await(int peer, size_t count, SteadyTime deadline, absl::FunctionRef<bool()> wait) const;
  // Makes Abort abort `transfer` (null: nothing) from now on. Returns the status with which the mesh has ended, if so.
  absl::Status Register(Transfer* transfer);

  // Constant after construction.
  const std::shared_ptr<gloo::transport::Context> context_;
  const std::vector<std::string> addresses_;  // by peer

  AbortState end_;
  absl::Mutex mu_;
  Transfer* transfer_ ABSL_GUARDED_BY(mu_) = nullptr;  // in progress
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DATA_PLANE_TCP_MESH_H_
