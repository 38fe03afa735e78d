// Engine of `cuda` devices of one daemon: copy engines over NVLink, and words written by the streams.
#ifndef PARAMSHARD_SERVER_DATA_PLANE_COPY_ENGINE_COLLECTIVES_H_
#define PARAMSHARD_SERVER_DATA_PLANE_COPY_ENGINE_COLLECTIVES_H_

#include <map>
#include <memory>
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
// A gather is one or two batches of copies that push this rank's pieces into the peers' slots, peer by peer: with the
// pieces of one peer together the links run at full speed, and no kernel competes with the trainers' for the GPU. A
// batch begins when all of it is enqueued: the largest piece goes first, alone, and is copied while the others are
// enqueued. The stream then writes the ready word on every peer's page, so that no trainer waits for this process to
// notice.
class CopyEngineCollectives final : public Collectives {
 public:
  // One rank's end of the group.
  static absl::StatusOr<std::unique_ptr<Collectives>> Create(const LocalGroup& group, int rank, bool sums_at_commit);

  ~CopyEngineCollectives() override;

  absl::Status Gather(const GatherCall& call, Delivered delivered) override;
  absl::StatusOr<bool> GatherDone(const GatherCall& call, Delivered delivered) override;
  absl::StatusOr<std::vector<int32_t>> Reduce(const ReduceCall& call) override;
  absl::Status MaxOverDaemons(int64_t, absl::Span<float>) override { return abort_.status(); }
  absl::StatusOr<std::vector<SumTask>> TakeSums() override;
  void Abort(const absl::Status& status) override { abort_.Set(status); }
  bool lands_own_pieces() const override { return false; }
  bool sums_at_commit() const override { return reduction_.sums_at_commit(); }
  int64_t scratch_bytes() const override { return reduction_.scratch_bytes(); }
  absl::string_view name() const override { return "copy engine"; }

 private:
  // The last gather into a slot.
  struct Flight {
    gpu::Event end;
    SteadyTime deadline = {};
  };

  CopyEngineCollectives(LocalGroup group, int rank, LocalReduction reduction, gpu::Stream gathers,
                        std::vector<Flight> flights);

  // Copies of a gather, in the order in which they are enqueued: while the first run the others are enqueued.
  struct GatherCopies {
    gpu::BatchCopy first, rest;
    int64_t size_bytes = 0;
  };
  const GatherCopies& CopiesOf(const GatherCall& call);

  // Constant after construction.
  const LocalGroup group_;
  const int rank_;
  const gpu::Stream gathers_;

  LocalReduction reduction_;  // used by Reduce and TakeSums

  // Used by Gather and GatherDone.
  std::vector<Flight> flights_;  // by slot
  // The copies of a gather, by unit, phase and slot; made at the first such gather.
  std::map<std::tuple<int, Phase, int>, GatherCopies> copies_;
  gpu::WordOperations ready_;

  AbortState abort_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DATA_PLANE_COPY_ENGINE_COLLECTIVES_H_
