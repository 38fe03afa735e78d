// One epoch of a model on this daemon: the memory that trainers map, the engines, and the threads that carry out
// commands.
//
// Every rank has two threads, one for each of its in-order queues. The gather thread (GatherWorker) also takes commands
// from its trainer's ring and waits at its doorbell; the push thread (PushWorker) sums, votes, applies and encodes.
// They share an EpochState: its Sequence says what may run, its CurrentCommit what is known of the commit, its
// EpochEnd why the epoch ends. What a rank's trainer maps is in its RankSlot.
//
// Trainers wait for the thread that holds the mutex: nothing is serialized, logged, published or called under it.
#ifndef PARAMSHARD_SERVER_TRAINING_EPOCH_H_
#define PARAMSHARD_SERVER_TRAINING_EPOCH_H_

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "paramshard/v1/trainer.pb.h"
#include "server/data_plane/topology.h"
#include "server/observe/recorder.h"
#include "server/terms/cluster.h"
#include "server/training/current_commit.h"
#include "server/training/epoch_engines.h"
#include "server/training/epoch_host.h"
#include "server/training/epoch_state.h"
#include "server/training/gather_worker.h"
#include "server/training/push_worker.h"
#include "server/training/trainer.h"

namespace paramshard::server {

// Thread-safe. Ranks are the daemon's own, from 0.
class Epoch {
 public:
  // `trainers` are of the daemon's ranks, in order. This daemon's node is among the active ones of `start`.
  Epoch(const EpochContext& context, EpochStart start, std::vector<Trainer> trainers);
  Epoch(const Epoch&) = delete;

  // Runs the epoch from start to end on the calling thread: allocates, connects, greets the trainers, works until End,
  // and tells the world and the trainers why it ended. Returns what it ended with.
  absl::Status Run();

  // Ends the epoch here. The first reason stays, except a lost connection between engines and an aborted vote: these
  // only show that the epoch has ended elsewhere, and wait for the reason. Returns at once.
  void End(const absl::Status& why);
  // Ends the epoch as soon as the commits that all ranks have sent by now are answered; at once without any.
  void EndAfterCommits(const absl::Status& why);
  // Returns true if it has ended; its memory may still be in use for a moment.
  bool ended() const { return state_.ended(); }
  // Returns what its last commit has left. Valid once Run has returned.
  OpenCommit open_commit() const;

  // Takes a command that came over the session's stream. FAILED_PRECONDITION before the trainer was sent `started`;
  // RESOURCE_EXHAUSTED if the rank would be too many commands ahead.
  absl::Status Submit(int rank, v1::Command command);
  // Records that the trainer's process is gone: its memory may be given up at the end.
  void MarkGone(int rank);
  // Lets the trainer leave after its `command_count`-th command. What all ranks have sent by then is carried out; the
  // trainer's on_ended is called when it is not needed any more, and the cluster is told. INVALID_ARGUMENT if it has
  // sent more.
  absl::Status Detach(int rank, int64_t command_count) { return state_.Detach(rank, command_count); }
  // Sets the last point to which all ranks of the world come (Sequence::LastPoint). The cluster is told as soon as all
  // before it is carried out here.
  void SetLastPoint(int64_t point) { state_.SetLastPoint(point); }
  // Tells the cluster which commands all ranks of this daemon have sent. If `unless` has a number: only if that command
  // is among them, and the hash through it differs.
  void ReportCommands(const CommandsThrough& unless) const;
  // Returns true if all of this daemon's trainers have detached and all that they had sent was carried out.
  bool LeftInOrder() const;
  // Returns true if the rank's trainer has detached and is not needed any more.
  bool HasLeft(int rank) const;

  // Returns the recorder of its ranks' recent events. It may outlive the epoch.
  std::shared_ptr<const Recorder> recorder() const { return state_.recorder; }
  // Returns, for people, what each rank was doing when the epoch ended. Valid once Run has returned.
  const std::vector<std::string>& last_words() const { return last_words_; }

  int64_t number() const { return start_.epoch; }
  const Topology& topology() const { return topology_; }
  // Returns true if some nodes, which hold replicas, take no part.
  bool leaves_nodes_out() const { return static_cast<int>(topology_.active().size()) < topology_.nodes(); }
  const std::vector<Trainer>& trainers() const { return trainers_; }
  // Returns the trainer of a session, null if it has none here.
  const Trainer* TrainerOf(int64_t session) const;
  std::string WaitsFor(int rank) const;
  int64_t last_command(int rank) const;
  int64_t words_bytes() const;
  // Both are of the engines; 0 and empty before they are connected.
  int64_t scratch_bytes(int rank) const { return engines_.scratch_bytes(rank); }
  std::string engine() const { return engines_.name(); }

 private:
  absl::Status Prepare();
  // Appends the threads that it starts to `threads`, also before an error.
  absl::Status StartThreads(std::vector<std::thread>& threads);
  // Tells trainers that have detached that the epoch ends for them, as soon as they are not needed any more, and the
  // cluster how far this daemon is, until the epoch ends.
  void ServeDepartures();
  void Tell(const DepartureUpdate& update);
  // Ends what engines are at, and waits for the cluster's word on the reason.
  absl::Status AwaitReason();
  // Tells the cluster why the epoch ended, with the bad links where these are the reason.
  void TellClusterOfEnd(const absl::Status& why) const;
  // Waits until the fate of the commit under way is known, if that does not take long.
  void AwaitCommitFate();
  // Returns `why` with more that a trainer needs: the epoch, and where to resume from.
  absl::Status Explained(const absl::Status& why) const;
  void EndPages(const absl::Status& why) const;
  void Clean();
  void TellEnd(int rank, const absl::Status& why);
  void SendEnded(int rank, const absl::Status& why) const;

  // Constant after construction.
  const EpochContext context_;
  const PlacedModel& model_;
  const EpochStart start_;
  const std::vector<Trainer> trainers_;
  const Topology topology_;  // of the daemons that take part

  EpochState state_;
  EpochEngines engines_;
  GatherWorker gathers_;
  PushWorker pushes_;
  std::vector<std::string> last_words_;  // of the thread of Run
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_EPOCH_H_
