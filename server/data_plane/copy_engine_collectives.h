// Engine of `cuda` devices of one daemon: copy engines over NVLink, and words written by the streams.
#ifndef PARAMSHARD_SERVER_DATA_PLANE_COPY_ENGINE_COLLECTIVES_H_
#define PARAMSHARD_SERVER_DATA_PLANE_COPY_ENGINE_COLLECTIVES_H_

#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/gpu/batch_copy.h"
#include "kernels/gpu/stream.h"
#include "kernels/gpu/word_operations.h"
#include "server/base/steady_time.h"
#include "server/data_plane/abort_state.h"
#include "server/data_plane/collectives.h"
#include "server/data_plane/local_group.h"
#include "server/data_plane/local_reduction.h"

namespace paramshard::server {

// Like MemcpyCollectives, it waits for no other rank, and moves bytes in the same directions.
//
// A gather of a peer is one or two batches of copies that push this rank's pieces into the peer's slot: with the pieces
// of one peer together the links run at full speed, and no kernel competes with the trainers' for the GPU. A batch begins
// when all of it is enqueued: the largest piece goes first, alone, and is copied while the others are enqueued. The
// stream then writes the ready word on the peer's page, so that no trainer waits for this process to notice. Each peer
// has a stream of its own: peers that gather at the same time are served at the same time, and no peer's link waits.
class CopyEngineCollectives final : public Collectives {
 public:
  // One rank's end of the group.
  static absl::StatusOr<std::unique_ptr<Collectives>> Create(const LocalGroup& group, int rank, bool sums_at_commit);

  ~CopyEngineCollectives() override;

  absl::Status Gather(const GatherCall& call, Delivered delivered) override;
  absl::StatusOr<bool> GatherDone(const GatherCall& call, Delivered delivered) override;
  absl::Status Land(const LandCall& call) override;
  absl::StatusOr<std::vector<int32_t>> Reduce(const ReduceCall& call) override;
  absl::Status MaxOverDaemons(int64_t, absl::Span<float>) override { return abort_.status(); }
  absl::StatusOr<std::vector<SumTask>> TakeSums() override;
  void Abort(const absl::Status& status) override { abort_.Set(status); }
  bool lands_own_pieces() const override { return false; }
  bool sums_at_commit() const override { return reduction_.sums_at_commit(); }
  int64_t scratch_bytes() const override { return reduction_.scratch_bytes(); }
  absl::string_view name() const override { return "copy engine"; }

 private:
  // The last gather into a slot of a peer.
  struct Flight {
    gpu::Event end;
    SteadyTime deadline = {};
  };

  // A peer; empty for this rank.
  struct Target {
    std::optional<gpu::Stream> stream;
    std::vector<Flight> flights;  // by slot
  };

  CopyEngineCollectives(LocalGroup group, int rank, LocalReduction reduction, std::vector<Target> targets);

  // Returns the ranks whose slots the gather writes.
  std::vector<int> PeersOf(const GatherCall& call) const;

  // Copies to one peer, in the order in which they are enqueued: while the first run the others are enqueued.
  struct GatherCopies {
    gpu::BatchCopy first, rest;
    int64_t size_bytes = 0;
  };
  const GatherCopies& CopiesOf(const GatherCall& call, int peer);

  // Constant after construction.
  const LocalGroup group_;
  const int rank_;

  LocalReduction reduction_;  // used by Land, Reduce and TakeSums

  // Used by Gather and GatherDone.
  std::vector<Target> targets_;  // by rank
  // The copies of a gather, by peer, unit, phase and slot; made at the first such gather.
  std::map<std::tuple<int, int, Phase, int>, GatherCopies> copies_;
  gpu::WordOperations ready_;

  AbortState abort_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DATA_PLANE_COPY_ENGINE_COLLECTIVES_H_
