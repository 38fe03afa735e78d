// A mesh that counts what it receives.
#ifndef PARAMSHARD_TESTS_SERVER_DATA_PLANE_COUNTING_MESH_H_
#define PARAMSHARD_TESTS_SERVER_DATA_PLANE_COUNTING_MESH_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "server/data_plane/mesh.h"

namespace paramshard::server {

// Passes everything on to another mesh. What is exchanged on that one's host mesh is not counted.
class CountingMesh final : public Mesh {
 public:
  CountingMesh(std::unique_ptr<Mesh> mesh, int64_t* received_bytes)
      : Mesh(mesh->members(), mesh->self()), mesh_(std::move(mesh)), received_bytes_(received_bytes) {}

  absl::Status Exchange(absl::Span<const PeerTransfer> transfers, SteadyTime deadline,
                        absl::FunctionRef<void(int peer)> received) override {
    for (const PeerTransfer& transfer : transfers) {
      for (const Bytes& bytes : transfer.receives) *received_bytes_ += bytes.size;
    }
    return mesh_->Exchange(transfers, deadline, received);
  }
  void Abort(const absl::Status& status) override { mesh_->Abort(status); }
  Mesh& host_mesh() override { return mesh_->host_mesh(); }
  absl::string_view name() const override { return mesh_->name(); }

 private:
  const std::unique_ptr<Mesh> mesh_;
  int64_t* const received_bytes_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_DATA_PLANE_COUNTING_MESH_H_
