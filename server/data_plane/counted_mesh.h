// Mesh that counts its bytes.
#ifndef PARAMSHARD_SERVER_DATA_PLANE_COUNTED_MESH_H_
#define PARAMSHARD_SERVER_DATA_PLANE_COUNTED_MESH_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "server/data_plane/mesh.h"
#include "server/observe/metric_registry.h"

namespace paramshard::server {

// Counts the planes and gradients of successful exchanges. Headers and amaxes go over the host mesh, which is returned
// uncounted if it is a different mesh.
class CountedMesh final : public Mesh {
 public:
  // `metrics` outlives it.
  CountedMesh(std::unique_ptr<Mesh> mesh, MovedBy moved_by, MetricRegistry& metrics)
      : Mesh(mesh->members(), mesh->self()), mesh_(std::move(mesh)), moved_by_(moved_by), metrics_(metrics) {}

  absl::Status Exchange(absl::Span<const PeerTransfer> transfers, SteadyTime deadline,
                        absl::FunctionRef<void(int peer)> received) override {
    const absl::Status status = mesh_->Exchange(transfers, deadline, received);
    if (status.ok()) Count(transfers);
    return status;
  }
  void Abort(const absl::Status& status) override { mesh_->Abort(status); }
  Mesh& host_mesh() override { return mesh_->host_mesh(); }
  absl::string_view name() const override { return mesh_->name(); }

 private:
  static int64_t SizeOf(const std::vector<Bytes>& pieces) {
    int64_t size = 0;
    for (const Bytes& piece : pieces) size += piece.size;
    return size;
  }
  void Count(absl::Span<const PeerTransfer> transfers) {
    int64_t sent = 0;
    int64_t received = 0;
    for (const PeerTransfer& transfer : transfers) {
      sent += SizeOf(transfer.sends);
      received += SizeOf(transfer.receives);
    }
    metrics_.AddMoved(moved_by_, MoveDirection::kSent, sent);
    metrics_.AddMoved(moved_by_, MoveDirection::kReceived, received);
  }

  const std::unique_ptr<Mesh> mesh_;
  const MovedBy moved_by_;
  MetricRegistry& metrics_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DATA_PLANE_COUNTED_MESH_H_
