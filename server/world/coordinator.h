// The rules of a world: when epochs start and end, and how commits are decided. Independent of the wire format.
#ifndef PARAMSHARD_SERVER_WORLD_COORDINATOR_H_
#define PARAMSHARD_SERVER_WORLD_COORDINATOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/steady_cond_var.h"
#include "server/terms/cluster.h"
#include "server/terms/healing_plan.h"
#include "server/terms/world_terms.h"
#include "server/world/attendance.h"
#include "server/world/command_ledger.h"
#include "server/world/commit_book.h"
#include "server/world/decision_log.h"
#include "server/world/departures.h"
#include "server/world/epoch_plan.h"
#include "server/world/healing_order.h"
#include "server/world/link_book.h"
#include "server/world/membership.h"
#include "server/world/rendezvous_book.h"
#include "server/world/waiters.h"

namespace paramshard::server {

// Receiver of the coordinator's news for one node. Called in order, under the coordinator's lock: an implementation
// returns at once (it queues the news) and does not call the coordinator.
class NodeSink {
 public:
  virtual ~NodeSink() = default;
  // The node has joined a world of `nodes`. OnWorld follows when the last node has joined.
  virtual void OnWelcome(int nodes) = 0;
  // Devices of every node. Only an answer to AskWorld holds zeros, for nodes whose devices are not known.
  virtual void OnWorld(const std::vector<int>& device_counts) = 0;
  virtual void OnEpochStart(const std::string& model, const EpochStart& start) = 0;
  virtual void OnLastCommand(const std::string& model, int64_t epoch, int64_t command) = 0;
  virtual void OnCommandsWanted(const std::string& model, int64_t epoch, const CommandsThrough& unless) = 0;
  virtual void OnEpochEnd(const std::string& model, int64_t epoch, const absl::Status& why) = 0;
  // No epoch starts although all ranks are attached.
  virtual void OnEpochRefused(const std::string& model, const absl::Status& why) = 0;
  virtual void OnSaveNews(const SaveNews& news) = 0;
  virtual void OnRestoreNews(const RestoreNews& news) = 0;
  // The last call to this sink: the node hears the rest on another of its connections.
  virtual void OnMoved(int64_t connection) = 0;
  // Asks the node for a sign of life. Called outside the coordinator's lock.
  virtual void OnProbe() = 0;
  // The last call to this sink, after which the node is ignored. May be called outside the coordinator's lock.
  virtual void OnStop() = 0;
};

// Thread-safe. An epoch of a model starts when every node has joined (or, where each holds a replica, as many as the
// policy needs) and their reports attach all their ranks, with equal fingerprints, histories, versions and commit
// numbers, or with differences that a replica heals (Cluster::Report). Its number is greater than the numbers of all
// earlier epochs of the model and of those that reports name. At most one decision is made for each (epoch, commit
// number). It is answered as long as it is remembered (kKeptDecisions), also after the epoch has ended.
//
//   Coordinator coordinator(/*nodes=*/2);
//   coordinator.Join(0, /*device_count=*/2, &sink);   // every node once
//   coordinator.Report(0, {.model = "m", .shard_size = 2, .attached_ranks = {0, 1}});
//   auto decision = coordinator.Vote(0, vote, absl::Seconds(5));
class Coordinator {
 public:
  struct Options {
    int nodes = 1;
    WorldTerms terms = {};                 // of node 0
    std::vector<ClosedEpoch> closed = {};  // epochs of an earlier coordinator; the first one of each history counts
    DecisionLog* log = nullptr;            // takes epochs and decisions before any node is told; may be null
    AttendancePolicy attendance = {};
    std::vector<int> device_counts = {};  // by node, if an earlier coordinator knew them
  };
  explicit Coordinator(Options options);
  explicit Coordinator(int nodes) : Coordinator(Options{.nodes = nodes}) {}

  // Adds a node. `sink` is called until Leave has returned. Errors: see Membership::Join; UNAVAILABLE stopped.
  absl::Status Join(int node, int device_count, NodeSink* sink);
  // Replaces the sink of a node that is present; OnMoved is the last call to the old one. UNAVAILABLE stopped.
  absl::Status Move(int node, int64_t connection, NodeSink* sink);
  // Removes a lost node: forgets its reports and ends its running epochs with UNAVAILABLE naming it.
  void Leave(int node);
  // Until Stop, starts epochs without lost nodes that were waited for long enough, and ends epochs with cut links when
  // all nodes have had the time to report theirs. Called once, on its own thread, if the policy permits fewer nodes.
  void ServeAbsences();
  // Tells the node which nodes are present.
  void AskWorld(int node);
  std::vector<int> device_counts() const;
  WorldView ViewWorld();
  // See Cluster.
  absl::StatusOr<HealingAnswer> OrderHealing(absl::string_view model, int donor);
  std::optional<int> healing_donor(absl::string_view model) const;
  // See Cluster.
  std::optional<std::string> WhyNoEpoch(absl::string_view model);
  int nodes() const { return options_.nodes; }
  const WorldTerms& terms() const { return options_.terms; }
  // Waits until all nodes are present. DEADLINE_EXCEEDED names the missing ones; UNAVAILABLE stopped.
  absl::Status AwaitWorld(absl::Duration timeout);

  // Calls of `node`: see Cluster. A node that takes no part in an epoch cannot end it.
  void Report(int node, const ModelReport& report);
  void Forget(int node, absl::string_view model);
  void EndEpoch(int node, absl::string_view model, int64_t epoch, const absl::Status& why);
  // Links to a node that takes no part are ignored. Nodes that report bad links, or end the epoch meanwhile for any
  // reason, hear nothing more of it.
  void EndOnBadLinks(int node, absl::string_view model, int64_t epoch, const std::vector<BadLink>& links);
  void ReportCommands(int node, absl::string_view model, int64_t epoch, const std::vector<CommandInWords>& commands);
  // Ignores a rank that the node does not serve.
  void ReportDetached(int node, absl::string_view model, int64_t epoch, int rank, int64_t command_count,
                      const absl::Status& why);
  void ReportCarriedOut(int node, absl::string_view model, int64_t epoch, int64_t command, bool more);

  // Identity of a call that waits for an answer.
  struct Wait {
    std::string model = {};
    std::optional<std::string> key = {};  // of a value or parts; unset for a vote
    std::optional<int> node = {};         // the voter, or the reader of parts
    int64_t waiter = 0;
  };
  using VoteAnswered = Waiters<absl::StatusOr<CommitDecision>>::Answered;
  using ValueAnswered = RendezvousBook::ValueReaders::Answered;
  using Parts = RendezvousBook::Parts;
  using PartsAnswered = RendezvousBook::PartsReaders::Answered;

  // Votes. `answered` is called once, without any lock: by this call, or by the call that brings the answer. Errors:
  // ABORTED, FAILED_PRECONDITION, INVALID_ARGUMENT and DATA_LOSS as in Cluster.
  Wait Vote(int node, const CommitVote& vote, VoteAnswered answered);
  // Votes and waits for at most `wait`. DEADLINE_EXCEEDED nothing is decided yet: the vote counts, repeat it for the
  // answer.
  absl::StatusOr<CommitDecision> Vote(int node, const CommitVote& vote, absl::Duration wait);

  // Cancels a wait. Returns true if the answer was still pending. A vote counts nevertheless.
  bool GiveUp(const Wait& wait);

  // Answers a query of `node` without waiting: see Cluster. ABORTED, DATA_LOSS.
  absl::StatusOr<CommitDecision> QueryCommit(int node, const CommitQuery& query);

  // Rendezvous of an epoch: Put stores a value under (`node`, `key`), Get reads it. `answered` is called as in Vote.
  // ABORTED the epoch does not run; FAILED_PRECONDITION the node takes no part; ALREADY_EXISTS the node has put another
  // value there; DEADLINE_EXCEEDED it has put none; UNAVAILABLE stopped.
  absl::Status Put(int node, absl::string_view model, int64_t epoch, absl::string_view key, absl::string_view value);
  Wait Get(int node, absl::string_view model, int64_t epoch, absl::string_view key, ValueAnswered answered);
  absl::StatusOr<std::string> Get(int node, absl::string_view model, int64_t epoch, absl::string_view key,
                                  absl::Duration timeout);
  // DEADLINE_EXCEEDED
  static absl::Status LateValueError(int node, absl::string_view model, absl::string_view key, absl::Duration timeout);

  // Rendezvous of parts: `node` puts one part for each node, and each node reads its own. The first decided commit
  // drops the parts and ends calls that wait for them with ABORTED. INVALID_ARGUMENT not one part for each node, or no
  // such node; other errors as above.
  absl::Status PutParts(int node, absl::string_view model, int64_t epoch, absl::string_view key, Parts parts);
  Wait GetParts(int node, absl::string_view model, int64_t epoch, absl::string_view key, PartsAnswered answered);
  absl::StatusOr<Parts> GetParts(int node, absl::string_view model, int64_t epoch, absl::string_view key,
                                 absl::Duration timeout);
  // DEADLINE_EXCEEDED naming a node that has put no parts.
  absl::Status LatePartsError(absl::string_view model, absl::string_view key, absl::Duration timeout);

  // Calls of `node`: see Cluster.
  absl::Status TellSave(int node, const SaveNews& news);
  absl::Status TellRestore(int node, const RestoreNews& news);
  std::vector<int> restored_nodes(absl::string_view model, absl::uint128 id) const;

  // Ends calls in progress and later ones with UNAVAILABLE. Only votes differ: decided commits are still answered, and
  // others are ABORTED, because nothing is decided any more. Idempotent.
  void Stop();

 private:
  class Lock;

  struct OrderedRestore {
    RestoreOrder order;
    std::vector<int> nodes;  // its receivers and node 0, ascending
  };

  struct EndedEpoch {
    int64_t epoch = 0;
    absl::Status why;
    bool by_votes = false;  // the votes disagreed: they are answered with `why` itself
  };

  // State of an epoch with cut links, until it ends.
  struct Gathering {
    SteadyTime until;
    std::set<int> gone;  // nodes that have ended the epoch, and may have reported for the next one
  };

  struct Model : ModelFacts {
    Model(std::string name, int nodes);

    std::vector<int> active;  // nodes of the last epoch
    int64_t epoch_floor = 0;  // epochs up to this one belonged to an erased model, or to another coordinator
    int64_t last_epoch = 0;
    int64_t unknown_epoch = 0;  // the last epoch, if another coordinator began it and its nodes are not known; else 0
    bool running = false;
    std::optional<absl::Status> rolls_back = {};  // why node 0 was told to roll all nodes back; unset once it answers
    absl::Status refused;                         // why the last start was refused; OK once an epoch has started
    WaitToStart::For waits_for = {};              // as the log says
    EndedEpoch last_end;
    std::optional<Gathering> gathering;  // of the running epoch
    CommitBook book;
    CommandLedger commands;  // of the running epoch
    Departures departures;
    // By node: votes on the commit after the last decided one.
    std::map<int, Waiters<absl::StatusOr<CommitDecision>>> voters;
    RendezvousBook rendezvous;  // of the running epoch
  };

  // Returns the rendezvous of the running epoch. ABORTED, UNAVAILABLE there is none; FAILED_PRECONDITION `node` takes
  // no part.
  absl::StatusOr<RendezvousBook*> FindRendezvous(absl::string_view model, int64_t epoch, int node)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Null if no node has reported the model and no other coordinator has known it.
  Model* Find(absl::string_view model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Null unless that epoch runs.
  Model* FindRunning(absl::string_view model, int64_t epoch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Returns the number of models that the node has reported.
  int64_t ModelsOf(int node) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes the nodes of another coordinator's epoch as the nodes of the last epoch.
  void TakeActive(const ClosedEpoch& before, Model& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  using Nodes = std::vector<int>;  // ascending
  static bool Has(const Nodes& nodes, int node);
  static absl::Status StoppedError();
  static absl::Status EpochOverError(absl::string_view model, int64_t epoch);

  bool IsAttached(const Model& model, int node) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool MayLeaveOut(const Model& model) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  WorldFacts FactsNow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // A person's order to heal; implemented in coordinator_healing.cc.
  absl::Status CheckMayOrder(const std::string& name, const Model& model, int donor) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  NodeState StateOf(const Model& model, int node, int donor) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends an order whose donor reports another state than the ordered one.
  void CheckOrder(const std::string& name, Model& model, int node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Notes that the model's epoch has begun with these healings, under this history, and logs the states that it gives
  // up.
  void BeginByOrder(const std::string& name, Model& model, const std::vector<Healing>& healings,
                    const std::string& history_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndOrderBehindCommit(const std::string& name, Model& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndOrder(const std::string& name, Model& model, absl::string_view why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Starts the model's next epoch if its plan says so, and tells those concerned if it does not.
  void TryStart(const std::string& name, Model& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LogWait(Model& model, const WaitToStart& wait) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes the next epoch's number greater than all numbers that nodes have heard of.
  void SkipEpochsOfOthers(Model& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Start(const std::string& name, Model& model, Nodes nodes, std::vector<Healing> healings = {})
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WarnWhoIsNeeded(const std::string& name, const Model& model) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Handles a returner: a node outside the running epoch that has all its trainers. They wait for the epoch's end, or
  // hear why the node cannot take part.
  void CheckReturner(const std::string& name, Model& model, int node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns how long a returner still waits before it ends the running epoch of some model.
  absl::Duration HeldBack(int node, SteadyTime now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LogHeldBack(const std::string& name, int node) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the epoch if a returner is to take part in the next one, which goes on from the last decided commit.
  void EndForReturners(const std::string& name, Model& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  RankRange FirstGroup(const Model& model, const ModelReport& state) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int RanksOf(const Nodes& nodes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status WriteBegun(const std::string& name, const ModelReport& state, const Nodes& nodes, int64_t epoch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void End(const std::string& name, Model& model, const absl::Status& why, bool by_votes = false)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Notes that the node has ended an epoch with cut links.
  void Gather(int node, const std::string& name, Model& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the epoch with all that was reported of its links.
  void EndGathering(const std::string& name, Model& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // UNAVAILABLE naming the bad links and their consequence.
  absl::Status BadLinksError(const Model& model) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the nodes that, as things stand, the model's next epoch is without because their links are cut.
  Nodes LeftOut(const Model& model, SteadyTime now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns when epochs are to be looked at again; unset: at the next change.
  std::optional<SteadyTime> NextLook(SteadyTime now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndIfAllIsDone(const std::string& name, Model& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RefuseStart(const std::string& name, Model& model, const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RefuseNode(const std::string& name, Model& model, int node, const absl::Status& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndRollback(const std::string& name, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // FAILED_PRECONDITION every node has a state.
  absl::Status CheckMayGoBack(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EraseIfForgotten(absl::string_view name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Returns the answer to the vote if there is one; else counts the vote and returns nothing while the decision is
  // open.
  std::optional<absl::StatusOr<CommitDecision>> TakeVote(int node, const CommitVote& vote)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CastVote(int node, const CommitVote& vote) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns node 0's vote, which every decision needs, extended so that the decision is written to the log too.
  // Requires a log.
  CommitVote WithLog(const CommitVote& vote) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Asks a node for its commands, at most once.
  void DemandCommands(const std::string& name, Model& model, int node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Asks the nodes that have not voted whether they have sent other commands than the voters.
  void AskTheLate(const std::string& name, Model& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the answer to a vote; nothing while the decision is open.
  std::optional<absl::StatusOr<CommitDecision>> Answer(const CommitQuery& query) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Adds the client states of the previous node's ranks, if known, to the decision that answers `node`.
  void AddPrevious(int node, const CommitQuery& query, CommitDecision& decision) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Answers all voters on the commit, whose decision is not open any more.
  void AnswerVoters(const std::string& name, Model& model, int64_t commit_number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Saves and restores; implemented in coordinator_checkpoints.cc. News of node 0 about a save goes to all other nodes,
  // news of another node to node 0.
  absl::Status TellFollowers(const SaveNews& news) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TellLeader(int node, SaveNews news) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckMayOrder(const std::string& model, const SaveOrder& order) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the decision, with the save order that is in progress if it has to be carried out first.
  CommitDecision WithOrder(absl::string_view model, int64_t commit_number, CommitDecision decision) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Tells node 0 that a lost node writes no part of the saves in progress.
  void TellLostParts(int node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // The same for restores.
  absl::Status TellRestoreFollowers(const RestoreNews& news) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TellRestoreLeader(int node, RestoreNews news) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // UNAVAILABLE naming a missing node that the restore needs.
  absl::StatusOr<Nodes> NodesToRestore(const std::string& name, const RestoreOrder& order) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Writes to the log, before anything changes, that the restore replaces the states of absent nodes.
  absl::Status WriteReplaced(const std::string& name, const RestoreGo& go) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TellLostRestores(int node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // UNAVAILABLE naming a missing node.
  absl::Status CheckAllHere(absl::string_view operation, absl::string_view model) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // UNAVAILABLE naming a node that was not in the last epoch: its state is old or missing.
  absl::Status CheckAllTakePart(absl::string_view operation, absl::string_view name, const Model& model) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Runs a call to the log without the mutex: a disk may be slow, and calls that only look are answered meanwhile. The
  // decision is made by then, but no node is told; other changes wait, because every Lock does.
  absl::Status WriteInLog(absl::FunctionRef<absl::Status()> write) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  template <typename Call>
  void TellAll(Call call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Calls `call` for the nodes of the last epoch that are present.
  template <typename Call>
  void TellActive(const Model& model, Call call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;

  mutable absl::Mutex mu_;
  SteadyCondVar world_changed_;
  SteadyCondVar written_;
  bool is_writing_ ABSL_GUARDED_BY(mu_) = false;  // to the log
  int64_t last_waiter_ ABSL_GUARDED_BY(mu_) = 0;  // over all models and epochs, so that a wait is unique
  PendingAnswers answers_ ABSL_GUARDED_BY(mu_);   // given after the mutex is released

  Membership members_ ABSL_GUARDED_BY(mu_);
  LinkBook links_ ABSL_GUARDED_BY(mu_);
  std::vector<NodeSink*> sinks_ ABSL_GUARDED_BY(mu_);  // by node; null if it is absent
  std::map<std::string, Model, std::less<>> models_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, SaveOrder, std::less<>> saves_ ABSL_GUARDED_BY(mu_);          // in progress, by model
  std::map<std::string, OrderedRestore, std::less<>> restores_ ABSL_GUARDED_BY(mu_);  // likewise
  int64_t forgotten_epoch_ ABSL_GUARDED_BY(mu_) = 0;  // largest epoch of any erased model
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

// Lock for changes: waits until no call to the log is in progress, and gives pending answers after the mutex is
// released. Calls that only look, such as ViewWorld, take the mutex itself and do not wait for the log's disk.
class ABSL_SCOPED_LOCKABLE Coordinator::Lock {
 public:
  explicit Lock(Coordinator* coordinator) ABSL_EXCLUSIVE_LOCK_FUNCTION(coordinator->mu_) ABSL_NO_THREAD_SAFETY_ANALYSIS
      : coordinator_(coordinator) {
    coordinator_->mu_.Lock();
    while (coordinator_->is_writing_) coordinator_->written_.Wait(&coordinator_->mu_);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  ~Lock() ABSL_UNLOCK_FUNCTION() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const PendingAnswers answers = std::exchange(coordinator_->answers_, {});
    coordinator_->mu_.Unlock();
    for (const std::function<void()>& answer : answers) answer();
  }

 private:
  Coordinator* const coordinator_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_COORDINATOR_H_
