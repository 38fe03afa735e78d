// Push threads of an epoch: they add gradients up, and carry out commits.
#ifndef PARAMSHARD_SERVER_TRAINING_PUSH_WORKER_H_
#define PARAMSHARD_SERVER_TRAINING_PUSH_WORKER_H_

#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "paramshard/v1/trainer.pb.h"
#include "server/base/clock.h"
#include "server/data_plane/topology.h"
#include "server/observe/recorder.h"
#include "server/terms/cluster.h"
#include "server/training/current_commit.h"
#include "server/training/epoch_engines.h"
#include "server/training/epoch_host.h"
#include "server/training/epoch_state.h"
#include "server/training/sequence.h"

namespace paramshard::server {

// One for all ranks of the daemon.
class PushWorker {
 public:
  // All outlive this.
  PushWorker(const EpochContext& context, const EpochStart& start, const Topology& topology, EpochState& state,
             EpochEngines& engines)
      : context_(context),
        start_(start),
        topology_(topology),
        state_(state),
        engines_(engines),
        at_(context.model.ranks()) {}

  // Works for the rank until the epoch has ended. On a thread of its own.
  void Run(int rank);

 private:
  void RunWork(int rank, const Sequence::PushWork& work);
  void RunReduce(int rank, const Sequence::PushWork& work);
  void RunLand(int rank, const Sequence::PushWork& work);
  void PublishDrained(const std::vector<DrainedSlot>& drained) const;
  void RunDiscard(int rank);
  void RunSum(int rank);
  void RunVote(int rank, const Sequence::PushWork& work);
  // Votes, and writes the vote and its result to the journal, if there is one. `previous`: what the previous node's
  // ranks have sent with the commit.
  absl::StatusOr<Decided> Vote(const Sequence::PushWork& work, CommitVote vote,
                               std::optional<PreviousStates>& previous);
  void RunApply(int rank);
  void RunShareAmaxes(int rank, int64_t number);
  void RunEncode(int rank);
  // A rank's stage of a commit has ended with `status`.
  void FinishStage(int rank, const absl::Status& status,
                   std::optional<Sequence::ClientStates> (Sequence::*finish)(int rank, SteadyTime now));
  void Answer(int rank, const Decided& decided, Sequence::ClientStates client_states,
              std::optional<PreviousStates> previous);
  void WriteAnswer(const CommitAnswer& answer);

  void NoteWork(int rank, const Sequence::PushWork& work);
  void NoteWorkEnd(int rank);

  const EpochContext& context_;
  const EpochStart& start_;
  const Topology& topology_;
  EpochState& state_;
  EpochEngines& engines_;
  std::vector<Event> at_;  // what the thread of each rank is at; each has its own
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_PUSH_WORKER_H_
