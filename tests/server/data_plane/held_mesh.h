// Mesh whose other members agree with everything, until one of its exchanges hangs.
#ifndef PARAMSHARD_TESTS_SERVER_DATA_PLANE_HELD_MESH_H_
#define PARAMSHARD_TESTS_SERVER_DATA_PLANE_HELD_MESH_H_

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "server/data_plane/mesh.h"

namespace paramshard::server {

// Every other member sends back what it is sent, so that ranks agree on their commands.
class HeldMesh final : public Mesh {
 public:
  // The n-th exchange is held, none where it is 0: it sets `entered`, and ends with Abort alone.
  HeldMesh(std::vector<MeshMember> members, int held_exchange, absl::Notification* entered, int self = 0)
      : Mesh(std::move(members), self), held_exchange_(held_exchange), entered_(entered) {}

  absl::Status Exchange(absl::Span<const PeerTransfer> transfers, SteadyTime,
                        absl::FunctionRef<void(int peer)> received) override {
    if (++exchanges_ == held_exchange_) return Hold();
    for (const PeerTransfer& transfer : transfers) {
      for (size_t i = 0; i < std::min(transfer.sends.size(), transfer.receives.size()); ++i) {
        const Bytes& from = transfer.sends[i];
        const Bytes& to = transfer.receives[i];
        std::memcpy(to.data, from.data, static_cast<size_t>(std::min(from.size, to.size)));
      }
      received(transfer.peer);
    }
    return absl::OkStatus();
  }

  void Abort(const absl::Status& status) override {
    absl::MutexLock lock(&mu_);
    aborted_.Update(status);
  }

  Mesh& host_mesh() override { return *this; }
  absl::string_view name() const override { return "held"; }

 private:
  absl::Status Hold() {
    entered_->Notify();
    absl::MutexLock lock(&mu_);
    const auto is_aborted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !aborted_.ok(); };
    if (mu_.AwaitWithTimeout(absl::Condition(&is_aborted), absl::Seconds(30))) return aborted_;
    return absl::InternalError("nobody has ended the exchange");
  }

  const int held_exchange_;
  absl::Notification* const entered_;
  int exchanges_ = 0;

  absl::Mutex mu_;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_DATA_PLANE_HELD_MESH_H_
