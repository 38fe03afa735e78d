// Gather threads of an epoch: they read the trainers' commands, gather, and watch deadlines.
#ifndef PARAMSHARD_SERVER_TRAINING_GATHER_WORKER_H_
#define PARAMSHARD_SERVER_TRAINING_GATHER_WORKER_H_

#include <deque>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "paramshard/v1/trainer.pb.h"
#include "server/base/clock.h"
#include "server/data_plane/collectives.h"
#include "server/data_plane/topology.h"
#include "server/training/epoch_engines.h"
#include "server/training/epoch_host.h"
#include "server/training/epoch_state.h"

namespace paramshard::server {

// One for all ranks of the daemon.
class GatherWorker {
 public:
  // All outlive this.
  GatherWorker(const EpochContext& context, const Topology& topology, EpochState& state, EpochEngines& engines)
      : context_(context), topology_(topology), state_(state), engines_(engines), late_ranks_(context.model.ranks()) {}

  // Works for the rank until the epoch has ended. On a thread of its own.
  void Run(int rank);

 private:
  // A rank's part of a gather.
  struct UnderWay {
    GatherCall call;
    absl::Status begun;
  };
  using AllUnderWay = std::vector<std::deque<UnderWay>>;  // by target
  // A rank's own gather, from its beginning until all ranks have served it.
  struct Own {
    GatherCall call;
    SteadyTime begun_at;
  };

  GatherCall CallOf(const Sequence::GatherWork& work) const;
  UnderWay Begin(int rank, const Sequence::GatherWork& work);
  // Finishes gathers that are done or failed, in order for each target; returns true if there were any.
  bool Finish(int rank, AllUnderWay& under_way);
  // Finishes the oldest gather of the target that was begun.
  void FinishOne(int rank, int target, const absl::Status& status);
  // Takes the rank's gathers that all have served.
  std::vector<Own> TakeServed(int rank, std::deque<Own>& own) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mu);
  // Announces the piece of `source`, which lies in the slot of `target`. Engines count ranks of the shard group.
  void PublishReady(const GatherCall& call, int target, int source) const;
  void TakeAll(int rank, absl::StatusOr<std::vector<SentCommand>> commands) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mu);
  // Counts the time since the last call for the ranks that alone are waited for.
  void CountLateRanks(SteadyTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mu);
  // Ends the epoch when a rank is overdue. Returns when to look again.
  SteadyTime CheckDeadlines() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mu);
  absl::Status Overdue(SteadyTime now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mu);

  const EpochContext& context_;
  const Topology& topology_;
  EpochState& state_;
  EpochEngines& engines_;
  std::vector<char> late_ranks_ ABSL_GUARDED_BY(state_.mu);  // at the last count
  SteadyTime late_since_ ABSL_GUARDED_BY(state_.mu);         // when that was
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_GATHER_WORKER_H_
