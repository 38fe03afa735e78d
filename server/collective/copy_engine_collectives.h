// The engine of `cuda` devices of one daemon: copy engines over NVLink, words written by the streams.
#ifndef PARAMSHARD_SERVER_COLLECTIVE_COPY_ENGINE_COLLECTIVES_H_
#define PARAMSHARD_SERVER_COLLECTIVE_COPY_ENGINE_COLLECTIVES_H_

#include <map>
#include <memory>
#include <tuple>

#include "absl/status/statusor.h"
#include "kernels/gpu/batch_copy.h"
#include "kernels/gpu/stream.h"
#include "kernels/gpu/word_operations.h"
#include "kernels/reduce/gradient_sum_cuda.h"
#include "server/collective/abort_state.h"
#include "server/collective/collectives.h"
#include "server/collective/local_group.h"

namespace paramshard::server {

// Waits for nobody, like MemcpyCollectives, and moves bytes in the same directions.
//
// A gather is one batch of copies that push this rank's pieces into the peers' slots, peer by peer: with the pieces of one
// peer together the links run at full speed, and no kernel competes with the trainers' for the GPU. The stream then writes
// the ready word on every peer's page, so that nobody waits for this process to notice.
//
// Reduce copies the peers' slices of this rank's extents into receive memory, by copy engines, and sums them in one kernel
// that touches no other GPU: a kernel that waits for NVLink would hold the trainers' back for longer.
class CopyEngineCollectives final : public Collectives {
 public:
  // One rank's end of the group.
  static absl::StatusOr<std::unique_ptr<Collectives>> Create(const LocalGroup& group, int rank);

  absl::Status Gather(const GatherCall& call, absl::FunctionRef<void(int rank, int source)> delivered) override;
  absl::Status Reduce(const ReduceCall& call) override;
  absl::Status MaxOverDaemons(int64_t, absl::Span<float>) override { return abort_.status(); }
  void Abort(const absl::Status& status) override { abort_.Set(status); }
  bool lands_own_pieces() const override { return false; }
  int64_t scratch_bytes() const override { return received_.size_bytes(); }
  absl::string_view name() const override { return "copy engine"; }

 private:
  CopyEngineCollectives(LocalGroup group, int rank, Memory received, gpu::Stream gathers, gpu::Stream reductions);

  const gpu::BatchCopy& CopiesOf(const GatherCall& call);
  // The sum of one slice, with the peers' parts copied to `received` on.
  gpu::GradientSumTask Receive(const ReduceCall& call, const GradientSlice& slice, uint8_t* received,
                               gpu::BatchCopy& copies) const;

  // Constant after construction.
  const LocalGroup group_;
  const int rank_;
  const Memory received_;  // the slices of the largest unit, of every peer; used by Reduce
  const gpu::Stream gathers_, reductions_;

  // Used by Gather. By unit, use and slot: what is copied, made at the first such gather.
  std::map<std::tuple<int, Use, int>, gpu::BatchCopy> copies_;
  gpu::WordOperations ready_;

  AbortState abort_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_COLLECTIVE_COPY_ENGINE_COLLECTIVES_H_
