// Mesh over NCCL for memory of GPUs.
#ifndef PARAMSHARD_SERVER_DATA_PLANE_NCCL_MESH_H_
#define PARAMSHARD_SERVER_DATA_PLANE_NCCL_MESH_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/gpu/nccl.h"
#include "kernels/gpu/stream.h"
#include "server/base/steady_time.h"
#include "server/data_plane/abort_state.h"
#include "server/data_plane/mesh.h"
#include "server/data_plane/tcp_mesh.h"

namespace paramshard::server {

// Runs NCCL's ordinary kernels, which can be aborted, on a stream of its own. They wait on the GPU for the other
// members and cannot tell for which: callers let the members meet on the host mesh first.
class NcclMesh final : public Mesh {
 public:
  // `host_mesh` connects the same members, each with a GPU of its own.
  static absl::StatusOr<std::unique_ptr<NcclMesh>> Create(const gpu::Nccl& nccl, int device,
                                                          std::unique_ptr<TcpMesh> host_mesh);

  // Joins the communicator of `id` and moves first bytes between all members, for which NCCL allocates memory on every
  // GPU. All members must call it; it waits for them. Errors of Exchange.
  absl::Status Connect(absl::string_view id, SteadyTime deadline);

  absl::Status Exchange(absl::Span<const PeerTransfer> transfers, SteadyTime deadline,
                        absl::FunctionRef<void(int peer)> received) override;
  void Abort(const absl::Status& status) override;
  Mesh& host_mesh() override { return *host_mesh_; }
  absl::string_view name() const override { return "nccl"; }

 private:
  NcclMesh(const gpu::Nccl& nccl, gpu::Stream stream, std::unique_ptr<TcpMesh> host_mesh);

  absl::Status TryConnect(absl::string_view id, absl::Span<const PeerTransfer> greetings, SteadyTime deadline);
  absl::Status TryExchange(absl::Span<const PeerTransfer> transfers, SteadyTime deadline);
  absl::Status AwaitReady(const std::string& peers, SteadyTime deadline) const;
  // Polls `is_done` until it returns true. `peers`: members for which it may wait.
  absl::Status Await(absl::FunctionRef<absl::StatusOr<bool>()> is_done, const std::string& peers,
                     SteadyTime deadline) const;
  // Ends the mesh: no kernel of it runs after the call. The first error is kept.
  absl::Status End(const absl::Status& status);
  // "rank 2 (node 1), rank 3 (node 1)"
  std::string PeerNames(absl::Span<const PeerTransfer> transfers) const;

  // Constant after construction.
  const gpu::Nccl& nccl_;
  const std::unique_ptr<TcpMesh> host_mesh_;
  const gpu::Stream stream_;

  // Used by Connect and Exchange. Destroyed before the stream that it uses.
  gpu::NcclCommunicator communicator_;

  AbortState end_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DATA_PLANE_NCCL_MESH_H_
