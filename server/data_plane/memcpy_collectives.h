// Engine of `cpu` devices of one daemon: plain copies between the ranks' memory.
#ifndef PARAMSHARD_SERVER_DATA_PLANE_MEMCPY_COLLECTIVES_H_
#define PARAMSHARD_SERVER_DATA_PLANE_MEMCPY_COLLECTIVES_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "server/data_plane/abort_state.h"
#include "server/data_plane/collectives.h"
#include "server/data_plane/local_group.h"
#include "server/data_plane/local_reduction.h"

namespace paramshard::server {

// Does not wait for other ranks: the daemon calls Gather only when the target has issued the command and its slot is
// free, and Reduce only when every rank has filled its gradient slot or makes no push. Gather pushes: it writes the
// target's slot. Reduce pulls: it reads the peers' gradient slots, so a slot is drained when every rank's Reduce has returned.
// Abort ends a gather between two peers.
class MemcpyCollectives final : public Collectives {
 public:
  // One rank's end of the group.
  static absl::StatusOr<std::unique_ptr<Collectives>> Create(const LocalGroup& group, int rank, bool sums_at_commit);

  absl::Status Gather(const GatherCall& call, Delivered delivered) override;
  absl::Status Land(const LandCall& call) override;
  absl::StatusOr<std::vector<int32_t>> Reduce(const ReduceCall& call) override;
  absl::Status MaxOverDaemons(int64_t, absl::Span<float>) override { return abort_.status(); }
  absl::StatusOr<std::vector<SumTask>> TakeSums() override;
  void Abort(const absl::Status& status) override;
  bool lands_own_pieces() const override { return false; }
  bool sums_at_commit() const override { return reduction_.sums_at_commit(); }
  int64_t scratch_bytes() const override { return reduction_.scratch_bytes(); }
  absl::string_view name() const override { return "memcpy"; }

 private:
  MemcpyCollectives(LocalGroup group, int rank, LocalReduction reduction);

  // Constant after construction.
  const LocalGroup group_;
  const int rank_;

  LocalReduction reduction_;  // used by Land, Reduce and TakeSums

  AbortState abort_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DATA_PLANE_MEMCPY_COLLECTIVES_H_
