// One epoch of a model on this daemon: the memory that trainers map, the engines, and the threads that carry out
// commands.
//
// Every rank has two threads, one for each of its in-order queues. The gather thread also takes commands from its
// trainer's ring and waits at its doorbell; the push thread sums, votes, applies and encodes. The Sequence says what
// may run; this class runs it and publishes words. What a rank's trainer maps is in its Seat, what is known of the
// commit under way in CommitUnderWay, why the epoch ends in EpochEnd.
//
// Trainers wait for whoever holds the mutex: nothing is serialized, logged, published or called under it.
//
// From start to end it stands in epoch.cc, its threads and what they carry out in epoch_commands.cc.
#ifndef PARAMSHARD_SERVER_STORE_EPOCH_H_
#define PARAMSHARD_SERVER_STORE_EPOCH_H_

#include <cstdint>
#include <deque>
#include <functional>
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
#include "absl/types/span.h"
#include "server/base/clock.h"
#include "server/base/steady_cond_var.h"
#include "server/collective/collectives.h"
#include "server/collective/engines.h"
#include "server/metrics/metric_registry.h"
#include "server/store/commit_under_way.h"
#include "server/store/copy_gate.h"
#include "server/store/epoch_end.h"
#include "server/store/model_journal.h"
#include "server/store/scaling_book.h"
#include "server/store/seat.h"
#include "server/store/sequence.h"
#include "server/store/shard.h"
#include "server/store/trainer.h"
#include "server/terms/cluster.h"
#include "server/terms/commit_log.h"
#include "server/trace/recorder.h"

namespace paramshard::server {

// Thread-safe.
class Epoch : private TrainerWords {
 public:
  struct Options {
    int64_t number = 0;
    std::string history_id = {};               // of the state that it began with
    std::shared_ptr<const Topology> topology;  // of the daemons that take part
    const ModelSpec* spec = nullptr;           // these five outlive the epoch
    const Layout* layout = nullptr;
    Cluster* cluster = nullptr;
    CommitLog* commit_log = nullptr;
    ScalingBook* scaling_book = nullptr;
    absl::Span<const std::unique_ptr<Shard>> shards;  // likewise, of the daemon's ranks in order
    std::vector<Trainer> trainers;                    // of the same
    int first_rank = 0;
    absl::Duration step_timeout;
    const Clock* clock = &Clock::Steady();  // outlives the epoch
    EngineSettings engines;
    bool sums_at_commit = false;                          // see EngineSpec
    uint64_t layout_fingerprint = 0;                      // which a trainer compares with its own
    CopyGate* copy_gate = nullptr;                        // outlives the epoch
    ModelJournal* journal = nullptr;                      // likewise; null where nothing outlives the server
    MetricRegistry* metrics = &MetricRegistry::Unread();  // outlives the epoch
    // Called when a commit is settled, before it is answered; `save`: the trainers ask for it.
    std::function<void(const CommitAnswer& answer, bool save)> on_answered = [](const CommitAnswer&, bool) {};
    bool may_save = false;  // whether trainers may ask for saves
    // Called when a commit is decided, before it is applied: the state that it replaces is to be saved.
    std::function<void(const SaveOrder& order)> on_save_order = [](const SaveOrder&) {};
    // What comes first: nodes that get the state from a replica. The two calls carry out what this daemon does of it.
    std::vector<Healing> healings = {};
    using Engines = absl::Span<const std::unique_ptr<Collectives>>;  // of the daemon's ranks in order
    using MoveState = std::function<absl::Status(int node, Engines engines, SteadyTime deadline)>;
    MoveState send_state = [](int, Engines, SteadyTime) { return absl::OkStatus(); };
    MoveState receive_state = [](int, Engines, SteadyTime) { return absl::OkStatus(); };
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
  // OK, or why the last answer is not in the journal. The state is that of the answered commit; no other one follows.
  absl::Status unwritten() const;
  // Ends it as soon as the commits are answered that all ranks have sent by now; at once where there is none.
  void EndAfterCommits(const absl::Status& why);

  // A command that came over the session's stream. FAILED_PRECONDITION before the trainer was sent `started`;
  // RESOURCE_EXHAUSTED more commands than a rank may be ahead.
  absl::Status Submit(int rank, v1::Command command);
  // The trainer's process is gone: its memory may be given up at the end.
  void MarkGone(int rank);
  // The trainer leaves after its `command_count`-th command. What all ranks have sent by then is carried out; the
  // trainer's on_ended is called when it is not needed any more, and the cluster is told. INVALID_ARGUMENT it has sent
  // more.
  absl::Status Detach(int rank, int64_t command_count);
  // No rank of the world has more to come than what all send up to this command. The cluster is told as soon as that is
  // carried out here.
  void SetLastCommand(int64_t command);
  // Tells the cluster which commands all ranks of this daemon have sent; where `unless` has a number only if that one is
  // among them, and the hash through it is another one.
  void ReportCommands(const CommandsThrough& unless) const;
  // Whether all of this daemon's trainers have detached and all that they had sent was carried out.
  bool LeftInOrder() const;
  // Whether the rank's trainer has detached and is not needed any more.
  bool HasLeft(int rank) const;

  // What its ranks were at lately. It may outlive the epoch.
  std::shared_ptr<const Recorder> recorder() const { return recorder_; }
  // What each rank was at when the epoch ended, for people. Once Run has returned.
  const std::vector<std::string>& last_words() const { return last_words_; }

  int64_t number() const { return options_.number; }
  const Topology& topology() const { return *options_.topology; }
  // Some that hold replicas take no part.
  bool leaves_nodes_out() const { return static_cast<int>(topology().active().size()) < topology().nodes(); }
  const std::vector<Trainer>& trainers() const { return options_.trainers; }
  std::string WaitsFor(int rank) const;
  int64_t last_command(int rank) const;
  // The landing area too.
  int64_t slots_bytes() const;
  int64_t words_bytes() const;
  int64_t scratch_bytes(int rank) const;  // that the rank's engine holds for itself
  std::string engine() const;

 private:
  // A gather of a rank.
  struct UnderWay {
    GatherCall call;
    SteadyTime begun_at;
    absl::Status begun;
  };

  // Says what is carried out here.
  struct Progress {
    int64_t command = 0;
    bool more = false;  // a rank has sent a later one
    friend bool operator==(const Progress& a, const Progress& b) { return a.command == b.command && a.more == b.more; }
  };

  // TrainerWords
  uint32_t Released(int rank, int slot) const override;
  uint32_t Filled(int rank, int slot) const override;

  // With the links that are bad, where those are the reason.
  void TellClusterOfEnd(const absl::Status& why) const;
  absl::Status Prepare();
  absl::Status AllocateSeats();
  // Which no other epoch of any daemon has.
  std::string NameInWorld() const;
  absl::Status Connect();
  // Nobody goes on before every node has the state.
  absl::Status Heal();
  absl::Status AwaitHealed(const Healing& healing, absl::Duration timeout) const;
  // How long that may take: it follows the bytes.
  absl::Duration HealTimeout() const;
  // Planes of formats that NeedsAmax(), from what the masters of all daemons are now.
  absl::Status EncodeByAmax();
  // Shares those of the commit `command_number`; 0 is the start.
  absl::Status ShareAmaxes(int64_t command_number);
  absl::Status Greet();
  absl::Status GreetTrainer(int rank);
  EpochGreeting GreetingOf(int rank) const;

  // Fills `threads` as far as there are any to be had.
  absl::Status StartThreads(std::vector<std::thread>& threads);
  absl::Status StartRank(int rank, std::vector<std::thread>& threads);
  // Waits for the end, ends what engines are at, and waits for the cluster's word on the reason.
  absl::Status AwaitReason();
  // Waits until the fate of the commit under way is known, if that does not take long.
  void AwaitCommitFate();
  // `why` with what a trainer needs besides: the epoch, and where to resume from.
  absl::Status Explained(const absl::Status& why) const;
  void EndPages(const absl::Status& why);
  // Says the end to trainers that have detached, as soon as they are not needed any more, and to the cluster how far
  // this daemon is, until the epoch ends.
  void ServeDepartures();
  // Tries the links to other daemons now and then, until the epoch ends, or ends it.
  void WatchLinks();
  // Says what is to be said to a trainer and to the cluster.
  struct DepartureNews {
    std::optional<int> leaving;  // a rank whose trainer may go
    std::optional<Progress> progress;
    bool empty() const { return !leaving.has_value() && !progress.has_value(); }
  };
  DepartureNews TakeDepartureNews() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Tell(const DepartureNews& news);
  // How far this daemon is behind the last command, once that is carried out.
  std::optional<Progress> ProgressNow() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Clean();
  void TellEnd(int rank, const absl::Status& why);
  void SendEnded(int rank, const absl::Status& why) const;

  void GatherLoop(int rank);
  // Counts the time since the last call for the ranks that alone are waited for.
  void CountLateRanks(SteadyTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the epoch when somebody is overdue. Returns when to look again.
  SteadyTime CheckDeadlines() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PushLoop(int rank);
  void TakeAll(int rank, absl::StatusOr<std::vector<SentCommand>> commands) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Take(int rank, SentCommand command) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WakeRunnable() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Lets trainers go that have detached and are not needed any more.
  void CheckDepartures() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Departure(int rank) const;
  // Whether the epoch is to end after a commit, and that one is answered.
  bool LastCommitAnswered() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndLocked(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the epoch when a call of an engine or a vote has failed so.
  void EndOnError(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AbortEngines(const absl::Status& why) ABSL_LOCKS_EXCLUDED(engines_mu_);
  void WakeAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Overdue(SteadyTime now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  UnderWay BeginGather(int rank, const v1::Command& command);
  // Finishes those that are done or failed, in their order; returns whether there were any.
  bool FinishGathers(int rank, std::deque<UnderWay>& under_way);
  // The oldest that was begun.
  void FinishGather(int rank, SteadyTime begun_at, const absl::Status& status);
  // The engine speaks of ranks of the shard group.
  const Seat& SeatOf(int group_rank) const { return *seats_[options_.topology->LocalRank(group_rank)]; }
  void RunPush(int rank, const Sequence::PushWork& work);
  void RunReduce(int rank, const v1::Command& command);
  void RunDiscard(int rank);
  void RunSum(int rank);
  void RunVote(int rank, const Sequence::PushWork& work);
  // Writes down what is voted on, and what comes of it, where somebody keeps it.
  // `previous`: what the previous node's ranks have sent with the commit.
  absl::StatusOr<Decided> Vote(const Sequence::PushWork& work, CommitVote vote,
                               std::optional<PreviousStates>& previous);
  JournaledState journaled_state() const { return {.shards = options_.shards, .book = options_.scaling_book}; }
  void RunApply(int rank);
  void RunShareAmaxes(int rank, const v1::Command& command);
  void RunEncode(int rank);
  // A rank's stage of a commit has ended with `status`.
  void FinishStage(int rank, const absl::Status& status,
                   std::optional<Sequence::ClientStates> (Sequence::*finish)(int rank, SteadyTime now));
  void Answer(int rank, const Decided& decided, Sequence::ClientStates client_states,
              std::optional<PreviousStates> previous);
  void WriteAnswer(const CommitAnswer& answer);
  SteadyTime Now() const { return options_.clock->Now(); }

  // Records. A ring is written by the thread that Recorder::Rings names.
  static void Note(EventRing& ring, Event event);
  void NoteWork(int rank, const Sequence::PushWork& work);
  void NoteWorkEnd(int rank);
  // Unless it is what was noted last.
  static void NoteHolder(EventRing& ring, const Sequence::Holder& holder, Sequence::Holder& noted);

  const Options options_;
  const int ranks_;
  std::vector<std::unique_ptr<Seat>> seats_;
  std::unique_ptr<Rendezvous> rendezvous_;
  ConnectAbort connect_abort_;
  Links links_;
  std::thread links_thread_;  // from before engines connect until the epoch has ended; none without other daemons

  const std::shared_ptr<Recorder> recorder_;
  std::vector<Event> at_;                // what the push thread of each rank is at; each has its own
  std::vector<std::string> last_words_;  // of the thread of Run

  mutable absl::Mutex mu_;
  SteadyCondVar work_;  // push threads wait here; also Run
  Sequence sequence_ ABSL_GUARDED_BY(mu_);
  CommitUnderWay commit_ ABSL_GUARDED_BY(mu_);
  EpochEnd end_ ABSL_GUARDED_BY(mu_);
  // The epoch ends with `why` when this commit, named by its command, is answered.
  struct LastCommit {
    int64_t command = 0;
    absl::Status why;
  };
  std::optional<LastCommit> last_commit_ ABSL_GUARDED_BY(mu_);
  std::optional<int64_t> last_command_ ABSL_GUARDED_BY(mu_);  // that all ranks of the world send, once one has detached
  std::optional<Progress> told_progress_ ABSL_GUARDED_BY(mu_);
  std::vector<char> late_ranks_ ABSL_GUARDED_BY(mu_);  // at the last count
  SteadyTime late_since_ ABSL_GUARDED_BY(mu_);         // when that was

  // Not held while an engine works: whoever ends the epoch must not find one that is being destroyed.
  mutable absl::Mutex engines_mu_;
  std::vector<std::unique_ptr<Collectives>> engines_;  // changed under engines_mu_ while no other thread runs
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STORE_EPOCH_H_
