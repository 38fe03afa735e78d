// One epoch of a model on this daemon: the memory that trainers map, the engines, and the threads that carry out
// commands.
//
// Every rank has two threads, one for each of its in-order queues. The gather thread also takes commands from its
// trainer's ring and waits at its doorbell; the push thread sums, votes, applies and encodes. The Sequence says what
// may run; this class runs it and publishes words. What a rank's trainer maps is in its RankSlot, what is known of the
// commit under way in CommitUnderWay, why the epoch ends in EpochEnd.
//
// Trainers wait for the thread that holds the mutex: nothing is serialized, logged, published or called under it.
//
// epoch.cc has an epoch's course from start to end, epoch_commands.cc its threads and what they carry out.
#ifndef PARAMSHARD_SERVER_TRAINING_EPOCH_H_
#define PARAMSHARD_SERVER_TRAINING_EPOCH_H_

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
#include "server/data_plane/collectives.h"
#include "server/data_plane/engines.h"
#include "server/observe/metric_registry.h"
#include "server/observe/recorder.h"
#include "server/state/copy_gate.h"
#include "server/state/scaling_book.h"
#include "server/state/shard.h"
#include "server/terms/cluster.h"
#include "server/terms/commit_log.h"
#include "server/training/commit_under_way.h"
#include "server/training/epoch_end.h"
#include "server/training/model_journal.h"
#include "server/training/rank_slot.h"
#include "server/training/sequence.h"
#include "server/training/trainer.h"

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
    // Nodes that get the state from a replica first. `send_state` and `receive_state` carry out this daemon's part.
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

  // Ends the epoch here. The first reason stays, except a lost connection between engines and an aborted vote: these
  // only show that the epoch has ended elsewhere, and wait for the reason. Returns at once.
  void End(const absl::Status& why);
  // Returns true if it has ended; its memory may still be in use for a moment.
  bool ended() const;
  // Returns OK unless a commit was applied on some ranks and failed on others: then its error. Valid once Run has
  // returned.
  absl::Status torn() const;
  // Returns OK unless a vote failed without a result: then why. The commit was not applied here.
  absl::Status doubt() const;
  // Returns OK, or why the last answer is not in the journal. The answered commit is applied; no other one follows.
  absl::Status unwritten() const;
  // Ends the epoch as soon as the commits that all ranks have sent by now are answered; at once without any.
  void EndAfterCommits(const absl::Status& why);

  // Takes a command that came over the session's stream. FAILED_PRECONDITION before the trainer was sent `started`;
  // RESOURCE_EXHAUSTED if the rank would be too many commands ahead.
  absl::Status Submit(int rank, v1::Command command);
  // Records that the trainer's process is gone: its memory may be given up at the end.
  void MarkGone(int rank);
  // Lets the trainer leave after its `command_count`-th command. What all ranks have sent by then is carried out; the
  // trainer's on_ended is called when it is not needed any more, and the cluster is told. INVALID_ARGUMENT if it has
  // sent more.
  absl::Status Detach(int rank, int64_t command_count);
  // Sets the last command that any rank of the world sends. The cluster is told as soon as it is carried out here.
  void SetLastCommand(int64_t command);
  // Tells the cluster which commands all ranks of this daemon have sent. If `unless` has a number: only if that command
  // is among them, and the hash through it differs.
  void ReportCommands(const CommandsThrough& unless) const;
  // Returns true if all of this daemon's trainers have detached and all that they had sent was carried out.
  bool LeftInOrder() const;
  // Returns true if the rank's trainer has detached and is not needed any more.
  bool HasLeft(int rank) const;

  // Returns the recorder of its ranks' recent events. It may outlive the epoch.
  std::shared_ptr<const Recorder> recorder() const { return recorder_; }
  // Returns, for people, what each rank was doing when the epoch ended. Valid once Run has returned.
  const std::vector<std::string>& last_words() const { return last_words_; }

  int64_t number() const { return options_.number; }
  const Topology& topology() const { return *options_.topology; }
  // Returns true if some nodes, which hold replicas, take no part.
  bool leaves_nodes_out() const { return static_cast<int>(topology().active().size()) < topology().nodes(); }
  const std::vector<Trainer>& trainers() const { return options_.trainers; }
  std::string WaitsFor(int rank) const;
  int64_t last_command(int rank) const;
  // Counts the landing area too.
  int64_t slots_bytes() const;
  int64_t words_bytes() const;
  int64_t scratch_bytes(int rank) const;  // held by the rank's engine
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

  // Tells the cluster why the epoch ended, with the bad links where these are the reason.
  void TellClusterOfEnd(const absl::Status& why) const;
  absl::Status Prepare();
  absl::Status AllocateRankSlots();
  // Returns a name that no other epoch of any daemon has.
  std::string NameInWorld() const;
  absl::Status Connect();
  // Sends or receives the state as healings say, and waits until every node has it.
  absl::Status Heal();
  absl::Status AwaitHealed(const Healing& healing, absl::Duration timeout) const;
  // Returns how long healing may take; it depends on the number of bytes.
  absl::Duration HealTimeout() const;
  // Encodes planes of formats that NeedsAmax(), from the present masters of all daemons.
  absl::Status EncodeByAmax();
  // Shares the amaxes of the commit `command_number`; 0 is the start.
  absl::Status ShareAmaxes(int64_t command_number);
  absl::Status Greet();
  absl::Status GreetTrainer(int rank);
  EpochGreeting GreetingOf(int rank) const;

  // Appends the threads that it starts to `threads`, also before an error.
  absl::Status StartThreads(std::vector<std::thread>& threads);
  absl::Status StartRank(int rank, std::vector<std::thread>& threads);
  // Waits for the end, ends what engines are at, and waits for the cluster's word on the reason.
  absl::Status AwaitReason();
  // Waits until the fate of the commit under way is known, if that does not take long.
  void AwaitCommitFate();
  // Returns `why` with more that a trainer needs: the epoch, and where to resume from.
  absl::Status Explained(const absl::Status& why) const;
  void EndPages(const absl::Status& why);
  // Tells trainers that have detached that the epoch ends for them, as soon as they are not needed any more, and the
  // cluster how far this daemon is, until the epoch ends.
  void ServeDepartures();
  // Probes the links to other daemons now and then until the epoch ends; ends it when a link is bad.
  void WatchLinks();
  // News for a trainer and for the cluster.
  struct DepartureNews {
    std::optional<int> leaving;  // a rank whose trainer may go
    std::optional<Progress> progress;
    bool empty() const { return !leaving.has_value() && !progress.has_value(); }
  };
  DepartureNews TakeDepartureNews() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Tell(const DepartureNews& news);
  // Returns this daemon's progress at the last command, once that is carried out; null before.
  std::optional<Progress> ProgressNow() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Clean();
  void TellEnd(int rank, const absl::Status& why);
  void SendEnded(int rank, const absl::Status& why) const;

  void GatherLoop(int rank);
  // Counts the time since the last call for the ranks that alone are waited for.
  void CountLateRanks(SteadyTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the epoch when a rank is overdue. Returns when to look again.
  SteadyTime CheckDeadlines() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PushLoop(int rank);
  void TakeAll(int rank, absl::StatusOr<std::vector<SentCommand>> commands) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Take(int rank, SentCommand command) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WakeRunnable() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Lets trainers go that have detached and are not needed any more.
  void CheckDepartures() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Departure(int rank) const;
  // Returns true if the epoch is to end after a commit that is answered by now.
  bool LastCommitAnswered() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndLocked(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the epoch after an error of an engine's call or of a vote.
  void EndOnError(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AbortEngines(const absl::Status& why) ABSL_LOCKS_EXCLUDED(engines_mu_);
  void WakeAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Overdue(SteadyTime now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  UnderWay BeginGather(int rank, const v1::Command& command);
  // Finishes gathers that are done or failed, in order; returns true if there were any.
  bool FinishGathers(int rank, std::deque<UnderWay>& under_way);
  // Finishes the oldest gather that was begun.
  void FinishGather(int rank, SteadyTime begun_at, const absl::Status& status);
  // `group_rank`: engines count ranks of the shard group.
  const RankSlot& RankSlotOf(int group_rank) const { return *rank_slots_[options_.topology->LocalRank(group_rank)]; }
  void RunPush(int rank, const Sequence::PushWork& work);
  void RunReduce(int rank, const v1::Command& command);
  void RunDiscard(int rank);
  void RunSum(int rank);
  void RunVote(int rank, const Sequence::PushWork& work);
  // Votes, and writes the vote and its result to the journal, if there is one. `previous`: what the previous node's
  // ranks have sent with the commit.
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
  // Does nothing if `holder` is what was noted last.
  static void NoteHolder(EventRing& ring, const Sequence::Holder& holder, Sequence::Holder& noted);

  const Options options_;
  const int ranks_;
  std::vector<std::unique_ptr<RankSlot>> rank_slots_;
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

  // Not held while an engine works; keeps a thread that ends the epoch from finding an engine that is being destroyed.
  mutable absl::Mutex engines_mu_;
  std::vector<std::unique_ptr<Collectives>> engines_;  // changed under engines_mu_ while no other thread runs
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_EPOCH_H_
