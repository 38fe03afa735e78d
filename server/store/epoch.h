// One epoch of a model on this daemon: the memory that trainers map, the engines, and the threads that carry out
// commands.
//
// Every rank has two threads, one for each of its in-order queues. The gather thread also takes commands from its
// trainer's ring and waits at its doorbell; the push thread sums, votes, applies and encodes. The Sequence says what
// may run; this class runs it and publishes words.
#ifndef PARAMSHARD_SERVER_STORE_EPOCH_H_
#define PARAMSHARD_SERVER_STORE_EPOCH_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/wire/ring.h"
#include "proto/wire/words.h"
#include "server/cluster/cluster.h"
#include "server/collective/collectives.h"
#include "server/collective/engines.h"
#include "server/device/memory.h"
#include "server/store/commit_log.h"
#include "server/store/scaling_book.h"
#include "server/store/sequence.h"
#include "server/store/shard.h"
#include "server/store/trainer.h"

namespace paramshard::server {

// Thread-safe.
class Epoch : private TrainerWords {
 public:
  struct Options {
    int64_t number = 0;
    const ModelSpec* spec = nullptr;  // these six outlive the epoch
    const Layout* layout = nullptr;
    const Topology* topology = nullptr;
    Cluster* cluster = nullptr;
    CommitLog* commit_log = nullptr;
    ScalingBook* scaling_book = nullptr;
    std::vector<Shard*> shards;     // of the daemon's ranks, in order
    std::vector<Trainer> trainers;  // likewise
    int first_rank = 0;
    absl::Duration step_timeout;
    std::string nccl_library = {};  // see EngineSettings
    bool sums_at_commit = false;    // see EngineSpec
    // Fills in what a trainer is told at the start besides memory and commit: spec and layout.
    const v1::EpochStarted* greeting = nullptr;
  };

  explicit Epoch(Options options);
  ~Epoch() override;

  // Runs the epoch from start to end on the calling thread: allocates, connects, greets the trainers, works until End,
  // and tells the world and the trainers why it ended. Returns what it ended with.
  absl::Status Run();

  // Ends the epoch here; the first reason stays, but for a lost connection between engines and an aborted vote, which
  // only show that the epoch has ended elsewhere and wait for the reason. Returns at once.
  void End(const absl::Status& why);
  // Whether it has ended, though its memory may still be in use for a moment.
  bool ended() const;
  // OK unless a commit was applied on some ranks and failed on others: then what it failed with, once Run has returned.
  absl::Status torn() const;
  // OK unless a vote came to no answer: then why. The commit was not applied here.
  absl::Status doubt() const;
  // Waits until no commit that all ranks have sent is unanswered.
  void AwaitCommits(absl::Time deadline);

  // A command that came over the session's stream.
  void Submit(int rank, const v1::Command& command);
  // The trainer's process is gone or has detached: its memory may be given up at the end.
  void MarkGone(int rank);

  int64_t number() const { return options_.number; }
  const std::vector<Trainer>& trainers() const { return options_.trainers; }
  std::string WaitsFor(int rank) const;
  int64_t last_command(int rank) const;
  // The landing area too.
  int64_t slots_bytes() const;
  int64_t words_bytes() const;
  int64_t scratch_bytes(int rank) const;  // that the rank's engine holds for itself
  std::string engine() const;

 private:
  // One rank's trainer: its memory and where its ring has been read to.
  struct Seat {
    Memory slots;
    Memory words_memory;
    std::unique_ptr<Memory::Owner> open_words;  // to the rank's device
    wire::Words words;
    std::unique_ptr<wire::RingReader> ring;
    bool gone = false;
  };

  // A gather of a rank.
  struct UnderWay {
    GatherCall call;
    absl::Status begun;
  };

  // TrainerWords
  uint32_t Released(int rank, int slot) const override;
  uint32_t Filled(int rank, int slot) const override;

  absl::Status Prepare();
  absl::Status AllocateSeats();
  absl::StatusOr<Seat> AllocateSeat(ComputeDevice& device) const;
  absl::Status Connect();
  // Planes of formats that NeedsAmax(), from what the masters of all daemons are now.
  absl::Status EncodeByAmax();
  // Of the commit `command_number`, or at the start: 0.
  absl::Status ShareAmaxes(int64_t command_number);
  absl::Status Greet();
  absl::Status GreetTrainer(int rank);
  std::vector<std::thread> StartThreads();
  void Finish(const absl::Status& why);
  void FinishSeat(int rank, const absl::Status& why);

  void GatherLoop(int rank);
  // Ends the epoch when somebody is overdue. Returns when to look again.
  absl::Time CheckDeadlines() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PushLoop(int rank);
  // What the rank's trainer has sent since the last call. Used by its gather thread alone.
  absl::StatusOr<std::vector<v1::Command>> ReadRing(int rank) const;
  void TakeAll(int rank, absl::StatusOr<std::vector<v1::Command>> commands) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Take(int rank, v1::Command command) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WakeRunnable() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndLocked(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What a call of an engine or a vote returned.
  void EndOnError(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits for the end, and for the cluster's word on it.
  absl::Status AwaitReason();
  absl::Status FinalReason() const;
  absl::Status Overdue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  UnderWay BeginGather(int rank, const v1::Command& command);
  // Those that are done or failed, in their order; whether there were any.
  bool FinishGathers(int rank, std::deque<UnderWay>& under_way);
  // The oldest that was begun.
  void FinishGather(int rank, const absl::Status& status);
  void PublishReady(const GatherCall& call, int target, int source) const;
  void RunPush(int rank, const Sequence::PushWork& work);
  void RunReduce(int rank, const v1::Command& command);
  void RunSum(int rank);
  void RunVote(const v1::Command& command);
  void RunApply(int rank, const v1::Command& command);
  void RunShareAmaxes(const v1::Command& command);
  void RunEncode(int rank, const v1::Command& command);
  // A rank's stage of a commit has ended with `status`.
  void FinishStage(int rank, const v1::Command& command, const absl::Status& status,
                   bool (Sequence::*finish)(int rank, absl::Time now));
  void Answer(std::vector<std::string> client_states) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PublishAnswer(const Seat& seat, const v1::CommitResult& result) const;

  const Options options_;
  const int ranks_;
  std::vector<Seat> seats_;  // constant while threads run, but for `gone` (guarded by mu_)
  std::unique_ptr<Rendezvous> rendezvous_;
  ConnectAbort connect_abort_;

  mutable absl::Mutex mu_;
  absl::CondVar work_;  // push threads wait here; also AwaitCommits and Work
  Sequence sequence_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status why_ ABSL_GUARDED_BY(mu_);
  bool reason_open_ ABSL_GUARDED_BY(mu_) = false;      // the cluster may know better why
  std::vector<std::unique_ptr<Collectives>> engines_;  // set under mu_ before threads start
  // The commit in progress: sums by rank, and what was decided.
  std::vector<SquareSum> sums_ ABSL_GUARDED_BY(mu_);
  CommitDecision decision_ ABSL_GUARDED_BY(mu_);
  double gradient_norm_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status apply_failure_ ABSL_GUARDED_BY(mu_);
  absl::Status doubt_ ABSL_GUARDED_BY(mu_);
  // By when the other daemons must have voted; a later end of the epoch leaves the decision to the coordinator.
  absl::Time vote_deadline_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  StepParameters step_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STORE_EPOCH_H_
