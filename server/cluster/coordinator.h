// The rules of a world: when epochs start and end, and what becomes of a commit. Knows no wire.
#ifndef PARAMSHARD_SERVER_CLUSTER_COORDINATOR_H_
#define PARAMSHARD_SERVER_CLUSTER_COORDINATOR_H_

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
#include "server/cluster/attendance.h"
#include "server/cluster/command_ledger.h"
#include "server/cluster/commit_book.h"
#include "server/cluster/decision_log.h"
#include "server/cluster/departures.h"
#include "server/cluster/healing_order.h"
#include "server/cluster/link_book.h"
#include "server/cluster/membership.h"
#include "server/cluster/rendezvous_book.h"
#include "server/cluster/waiters.h"
#include "server/terms/cluster.h"
#include "server/terms/healing_plan.h"
#include "server/terms/world_terms.h"

namespace paramshard::server {

// The coordinator tells one node its news through this. It is called in order, under the coordinator's lock: returns at
// once (puts the news into a queue) and does not call the coordinator.
class NodeSink {
 public:
  virtual ~NodeSink() = default;
  // The node has joined: how many there are. The devices of all follow when the last one has joined.
  virtual void OnWelcome(int nodes) = 0;
  // Devices of every node. 0 where they are not known, which only an answer to AskWorld holds.
  virtual void OnWorld(const std::vector<int>& device_counts) = 0;
  virtual void OnEpochStart(const std::string& model, const EpochStart& start) = 0;
  virtual void OnLastCommand(const std::string& model, int64_t epoch, int64_t command) = 0;
  virtual void OnCommandsWanted(const std::string& model, int64_t epoch, const CommandsThrough& unless) = 0;
  virtual void OnEpochEnd(const std::string& model, int64_t epoch, const absl::Status& why) = 0;
  // No epoch starts, though all ranks are attached.
  virtual void OnEpochRefused(const std::string& model, const absl::Status& why) = 0;
  virtual void OnSaveNews(const SaveNews& news) = 0;
  virtual void OnRestoreNews(const RestoreNews& news) = 0;
  // Nothing follows here: the node hears the rest on another connection of it.
  virtual void OnMoved(int64_t connection) = 0;
  // The node is asked whether it is there. Outside the coordinator's lock.
  virtual void OnProbe() = 0;
  // Nothing follows, and nothing more is heard of the node. Also outside the coordinator's lock.
  virtual void OnStop() = 0;
};

// Thread-safe. An epoch of a model starts when every node has joined, or as many as the policy wants where each holds a
// replica, and the reports of these attach all their ranks, with equal fingerprints, histories, versions and commit
// numbers, or with nodes that a replica heals (Cluster::Report).
// Its number is greater than that of any epoch of that model before, and than those that reports name. At most one
// decision is made for each (epoch, commit number), and it
// is answered for as long as it is remembered (kKeptDecisions), whatever becomes of the epoch.
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
    std::vector<ClosedEpoch> closed = {};  // epochs of a coordinator before this one; of a history the first one counts
    DecisionLog* log = nullptr;  // where epochs and decisions are written down before anybody is told; or null
    AttendancePolicy attendance = {};
    std::vector<int> device_counts = {};  // by node, where a coordinator before this one knew them
  };
  explicit Coordinator(Options options);
  explicit Coordinator(int nodes) : Coordinator(Options{.nodes = nodes}) {}

  // Membership. `sink` is called until Leave has returned. Errors of Join: as Membership::Join; UNAVAILABLE stopped.
  absl::Status Join(int node, int device_count, NodeSink* sink);
  // The node is told its news through another sink from now on, and the one before hears so, and nothing more. Requires
  // that it is here. UNAVAILABLE stopped.
  absl::Status Move(int node, int64_t connection, NodeSink* sink);
  // The node is lost: its reports are forgotten and every running epoch that it is in ends with UNAVAILABLE naming it.
  void Leave(int node);
  // Starts epochs without nodes that need not be waited for any more, and ends those whose links are cut when all have
  // had the time to say so, until Stop. It is called once, on a thread of its own, where the policy permits fewer nodes.
  void ServeAbsences();
  // Tells the node who is here.
  void AskWorld(int node);
  std::vector<int> device_counts() const;
  WorldView ViewWorld();
  // As in Cluster.
  absl::StatusOr<HealingAnswer> OrderHealing(absl::string_view model, int donor);
  std::optional<int> healing_donor(absl::string_view model) const;
  int nodes() const { return options_.nodes; }
  const WorldTerms& terms() const { return options_.terms; }
  // Waits until all are here: DEADLINE_EXCEEDED names who is missing, UNAVAILABLE stopped.
  absl::Status AwaitWorld(absl::Duration timeout);

  // As in Cluster, said by `node`. One that takes no part in an epoch ends none.
  void Report(int node, const ModelReport& report);
  void Forget(int node, absl::string_view model);
  void EndEpoch(int node, absl::string_view model, int64_t epoch, const absl::Status& why);
  // What is said of a node that takes no part is ignored. Nodes that have said so hear nothing more of the epoch, and
  // neither do those that end it meanwhile for whatever reason.
  void EndOnBadLinks(int node, absl::string_view model, int64_t epoch, const std::vector<BadLink>& links);
  void ReportCommands(int node, absl::string_view model, int64_t epoch, const std::vector<CommandInWords>& commands);
  // A rank that the node does not serve is ignored.
  void ReportDetached(int node, absl::string_view model, int64_t epoch, int rank, int64_t command_count,
                      const absl::Status& why);
  void ReportCarriedOut(int node, absl::string_view model, int64_t epoch, int64_t command, bool more);

  // Names one who waits for an answer.
  struct Wait {
    std::string model = {};
    std::optional<std::string> key = {};  // of a value or of parts; unset for a vote
    std::optional<int> node = {};         // that votes, or reads parts of a value
    int64_t waiter = 0;
  };
  using VoteAnswered = Waiters<absl::StatusOr<CommitDecision>>::Answered;
  using ValueAnswered = RendezvousBook::ValueReaders::Answered;
  using Parts = RendezvousBook::Parts;
  using PartsAnswered = RendezvousBook::PartsReaders::Answered;

  // Votes. `answered` is called once: by this call, or by the one that brings the answer, without any lock. Errors:
  // ABORTED, FAILED_PRECONDITION, INVALID_ARGUMENT and DATA_LOSS as in Cluster.
  Wait Vote(int node, const CommitVote& vote, VoteAnswered answered);
  // The same, waiting for at most `wait`. DEADLINE_EXCEEDED nothing is decided yet: the vote counts, repeat it for the
  // answer.
  absl::StatusOr<CommitDecision> Vote(int node, const CommitVote& vote, absl::Duration wait);

  // Whether the answer was still to come: then it does not. What was voted counts.
  bool GiveUp(const Wait& wait);

  // As in Cluster, said by `node`: does not wait. ABORTED, DATA_LOSS.
  absl::StatusOr<CommitDecision> QueryCommit(int node, const CommitQuery& query);

  // Rendezvous; `answered` is called as that of a vote. What `node` puts is read as of it alone. ABORTED the epoch does
  // not run; FAILED_PRECONDITION the node takes no part; ALREADY_EXISTS it has put another value there; DEADLINE_EXCEEDED
  // it has put none; UNAVAILABLE stopped.
  absl::Status Put(int node, absl::string_view model, int64_t epoch, absl::string_view key, absl::string_view value);
  Wait Get(int node, absl::string_view model, int64_t epoch, absl::string_view key, ValueAnswered answered);
  absl::StatusOr<std::string> Get(int node, absl::string_view model, int64_t epoch, absl::string_view key,
                                  absl::Duration timeout);
  // DEADLINE_EXCEEDED
  static absl::Status LateValueError(int node, absl::string_view model, absl::string_view key, absl::Duration timeout);

  // The same of parts, said by `node`, but that who waits when a commit is decided, and parts are forgotten, is told so
  // with ABORTED. INVALID_ARGUMENT not one part for each node, or no such node.
  absl::Status PutParts(int node, absl::string_view model, int64_t epoch, absl::string_view key, Parts parts);
  Wait GetParts(int node, absl::string_view model, int64_t epoch, absl::string_view key, PartsAnswered answered);
  absl::StatusOr<Parts> GetParts(int node, absl::string_view model, int64_t epoch, absl::string_view key,
                                 absl::Duration timeout);
  // DEADLINE_EXCEEDED naming a node that has put none.
  absl::Status LatePartsError(absl::string_view model, absl::string_view key, absl::Duration timeout);

  // As in Cluster, said by `node`.
  absl::Status TellSave(int node, const SaveNews& news);
  absl::Status TellRestore(int node, const RestoreNews& news);
  std::vector<int> restored_nodes(absl::string_view model, absl::uint128 id) const;

  // Ends calls in progress and later ones with UNAVAILABLE, but for votes: what was decided is still answered, and what
  // was not is ABORTED, because nothing is decided any more. Idempotent.
  void Stop();

 private:
  class Lock;

  struct OrderedRestore {
    RestoreOrder order;
    std::vector<int> nodes;  // that it has gone to, and node 0; ascending
  };

  struct EndedEpoch {
    int64_t epoch = 0;
    absl::Status why;
    bool by_votes = false;  // the votes disagreed: their answer is `why` itself
  };

  // An epoch in which links are cut, until it ends.
  struct Gathering {
    SteadyTime until;
    std::set<int> gone;  // nodes that have ended it, and may have reported for the next one
  };

  struct Model {
    explicit Model(int nodes);

    ModelReports reports;     // by node
    std::vector<int> active;  // nodes of the last epoch
    // Nodes that the next one waits for: of the last one with a commit, but for those that one had to go without since;
    // before the first one all that may be in it.
    std::vector<int> awaited;
    std::string history_id;    // of the last epoch
    std::vector<bool> is_new;  // of each report: it was said since the last epoch began
    int64_t epoch_floor = 0;   // epochs up to this one belonged to a model that was erased, or to another coordinator
    int64_t last_epoch = 0;
    int64_t unknown_epoch = 0;  // the last one, where another coordinator began it and its nodes are not known; else 0
    bool running = false;
    bool waits_for_more = false;  // the log says so
    bool rolls_back = false;      // node 0 has heard that it is to lead all to a saved state, and has not answered
    EndedEpoch last_end;
    std::optional<HealingOrder> healing_order;
    ReplacedHistories replaced;
    std::optional<Gathering> gathering;  // of the running epoch
    std::vector<ClosedEpoch> before;     // of another coordinator, one for each history
    CommitBook book;
    CommandLedger commands;  // of the running epoch
    Departures departures;
    // By node, on the commit behind the last one that was decided.
    std::map<int, Waiters<absl::StatusOr<CommitDecision>>> voters;
    RendezvousBook rendezvous;  // of the running epoch
  };

  // That of the running epoch. ABORTED, UNAVAILABLE: there is nothing to be read. FAILED_PRECONDITION: not for `node`,
  // which takes no part.
  absl::StatusOr<RendezvousBook*> FindRendezvous(absl::string_view model, int64_t epoch, int node)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Null when no node has reported the model, nor another coordinator has known it.
  Model* Find(absl::string_view model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Null unless that epoch runs.
  Model* FindRunning(absl::string_view model, int64_t epoch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // How many the node has reported.
  int64_t ModelsOf(int node) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Those who were in that epoch of another coordinator are those of the last one.
  void TakeActive(const ClosedEpoch& before, Model& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  using Nodes = std::vector<int>;  // ascending
  static bool Has(const Nodes& nodes, int node);
  static absl::Status StoppedError();
  static absl::Status EpochOverError(absl::string_view model, int64_t epoch);

  // DATA_LOSS naming one of the nodes that has lost its part.
  absl::Status CheckNotLost(const std::string& name, const Model& model, const Nodes& nodes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The node has reported a trainer of each of its ranks.
  bool IsAttached(const Model& model, int node) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool AreAttached(const Model& model, const Nodes& nodes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // FAILED_PRECONDITION when nodes hold different specs or states.
  absl::Status CheckEqual(const std::string& name, const Model& model, const Nodes& nodes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether some nodes have initial values, and all others one state that was trained or imported: daemons that were
  // started empty in the place of lost ones. Requires their reports.
  bool HasFreshBesideTrained(const Model& model, const Nodes& nodes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether an epoch of these nodes would be the first one of a history: it needs all, of which another one may have a
  // state that was trained. Requires their reports.
  bool WouldBegin(const Model& model, const Nodes& nodes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool MayBeFewer(const Model& model) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // And the policy permits it.
  bool MayLeaveOut(const Model& model) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Unset while a node is waited for that is not here, or has not attached where it has to for the others' sake.
  std::optional<Nodes> NextNodes(const Model& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<Healing> Healings(const Model& model, const Nodes& nodes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // A person's order to heal, in coordinator_healing.cc.
  bool IsOrderedDonor(const Model& model, int node) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckMayOrder(const std::string& name, const Model& model, int donor) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  NodeState StateOf(const Model& model, int node, int donor) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The node has reported: an order is about what the donor had.
  void CheckOrder(const std::string& name, Model& model, int node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The model's epoch has begun with these healings, under this history: says what is given up.
  void BeginByOrder(const std::string& name, Model& model, const std::vector<Healing>& healings,
                    const std::string& history_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndOrderBehindCommit(const std::string& name, Model& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndOrder(const std::string& name, Model& model, absl::string_view why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Node 0 has lost its state, and who has a newer one than these nodes may come.
  bool WaitsForMore(const std::string& name, Model& model, const Nodes& nodes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TryStart(const std::string& name, Model& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The next epoch's number is greater than those that nodes have heard of.
  void SkipEpochsOfOthers(Model& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Start(const std::string& name, Model& model, Nodes nodes, std::vector<Healing> healings = {})
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WarnWhoIsNeeded(const std::string& name, const Model& model) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // DATA_LOSS: another coordinator has decided a later commit of this history than any of these nodes has, which may be
  // where epochs may be without some.
  absl::Status CheckNewest(const std::string& name, const Model& model, const Nodes& nodes,
                           const std::vector<Healing>& healings) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether what that one has decided last was told to nobody: all others who voted have the state before it.
  bool WasNeverTold(const ClosedEpoch& before, const Model& model, const Nodes& nodes, const ModelReport& state) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of the nodes that were not in the last epoch those are refused whose state is another one than the others', who go
  // on without them; all, where each would fit alone. Whether there were any.
  bool RefuseReturners(const std::string& name, Model& model, const Nodes& nodes, const absl::Status& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // FAILED_PRECONDITION: the node has another spec than the other one, which was in the last epoch, or a state that the
  // others have not gone on from to this commit.
  absl::Status CheckMayReturn(const std::string& name, const Model& model, int node, int other,
                              absl::string_view history_id, int64_t commit_number) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A node that is not in the running epoch has all its trainers: they wait for the epoch's end, or hear why the node
  // cannot take part.
  void CheckReturner(const std::string& name, Model& model, int node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What such a node still has to wait for before it ends the running epoch of some model.
  absl::Duration HeldBack(int node, SteadyTime now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LogHeldBack(const std::string& name, int node) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the epoch, where such a node is to take part in the next one. It goes on with the commit that was decided last.
  void EndForReturners(const std::string& name, Model& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  RankRange FirstGroup(const Model& model, const ModelReport& state) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int RanksOf(const Nodes& nodes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status WriteBegun(const std::string& name, const ModelReport& state, const Nodes& nodes, int64_t epoch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void End(const std::string& name, Model& model, const absl::Status& why, bool by_votes = false)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The node has ended the epoch, whose links are cut.
  void Gather(int node, const std::string& name, Model& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // With all that was said of its links.
  void EndGathering(const std::string& name, Model& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // UNAVAILABLE naming the links, and what comes of them.
  absl::Status BadLinksError(const Model& model) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Nodes whose links are cut, and that the model's next epoch is without because of that as far as can be told now.
  Nodes LeftOut(const Model& model, SteadyTime now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // When epochs are to be looked at again; unset: at the next change.
  std::optional<SteadyTime> NextLook(SteadyTime now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndIfAllIsDone(const std::string& name, Model& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RefuseStart(const std::string& name, Model& model, const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RefuseNode(const std::string& name, Model& model, int node, const absl::Status& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // No epoch starts before all nodes have a saved state: node 0 is to see to it while trainers wait. Refuses them where
  // nothing is saved.
  void GoBack(const std::string& name, Model& model, const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // DATA_LOSS that some nodes have lost it: which states there are, where a person may say which one counts.
  absl::Status WithWayOut(const std::string& name, const Model& model, const absl::Status& why) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndRollback(const std::string& name, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // FAILED_PRECONDITION: every node has a state.
  absl::Status CheckMayGoBack(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EraseIfForgotten(absl::string_view name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Counts the vote unless there is an answer. Nothing while the decision is open then.
  std::optional<absl::StatusOr<CommitDecision>> TakeVote(int node, const CommitVote& vote)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CastVote(int node, const CommitVote& vote) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of node 0, which takes part in every epoch: the decision is written down in the log too. Requires one.
  CommitVote WithLog(const CommitVote& vote) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Asks a node for its commands, once.
  void DemandCommands(const std::string& name, Model& model, int node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Asks those who have not voted whether they are at something else than those who have.
  void AskTheLate(const std::string& name, Model& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns what a vote is answered now; nothing while the decision is open.
  std::optional<absl::StatusOr<CommitDecision>> Answer(const CommitQuery& query) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Adds what the ranks of the node before have sent with the commit, where that is known, to what `node` is answered.
  void AddPrevious(int node, const CommitQuery& query, CommitDecision& decision) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Tells all who have voted on the commit, which is open no more.
  void AnswerVoters(const std::string& name, Model& model, int64_t commit_number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Saves and restores, in coordinator_checkpoints.cc. Node 0's word about a save, for all others; and another node's,
  // for node 0.
  absl::Status TellFollowers(const SaveNews& news) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TellLeader(int node, SaveNews news) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckMayOrder(const std::string& model, const SaveOrder& order) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The decision with the order that is under way, if that is to be carried out before it.
  CommitDecision WithOrder(absl::string_view model, int64_t commit_number, CommitDecision decision) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A node that is lost writes no part of what is being saved.
  void TellLostParts(int node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Likewise of restores.
  absl::Status TellRestoreFollowers(const RestoreNews& news) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TellRestoreLeader(int node, RestoreNews news) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // UNAVAILABLE naming one that is missing, which the restore cannot do without.
  absl::StatusOr<Nodes> NodesToRestore(const std::string& name, const RestoreOrder& order) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // All are ready: nodes that are away have a state that is replaced, which is written down before anything changes.
  absl::Status WriteReplaced(const std::string& name, const RestoreGo& go) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TellLostRestores(int node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // UNAVAILABLE naming one that is missing.
  absl::Status CheckAllHere(absl::string_view operation, absl::string_view model) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // UNAVAILABLE naming one that was not in the last epoch: its state is an old one, or none.
  absl::Status CheckAllTakePart(absl::string_view operation, absl::string_view name, const Model& model) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Runs a call to the log without the mutex: a disk may take its time, and questions are answered meanwhile. What is
  // decided stands then, and nobody is told of it. Nothing else changes: every Lock waits.
  absl::Status WriteInLog(absl::FunctionRef<absl::Status()> write) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  template <typename Call>
  void TellAll(Call call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Those of the last epoch that are here.
  template <typename Call>
  void TellActive(const Model& model, Call call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;

  mutable absl::Mutex mu_;
  SteadyCondVar world_changed_;
  SteadyCondVar written_;
  bool is_writing_ ABSL_GUARDED_BY(mu_) = false;  // in the log
  int64_t last_waiter_ ABSL_GUARDED_BY(mu_) = 0;  // of all models and epochs: whoever gives up names nobody else
  PendingAnswers answers_ ABSL_GUARDED_BY(mu_);   // to be given when the lock is free

  Membership members_ ABSL_GUARDED_BY(mu_);
  LinkBook links_ ABSL_GUARDED_BY(mu_);
  std::vector<NodeSink*> sinks_ ABSL_GUARDED_BY(mu_);  // by node; null when it is not here
  std::map<std::string, Model, std::less<>> models_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, SaveOrder, std::less<>> saves_ ABSL_GUARDED_BY(mu_);          // under way, by model
  std::map<std::string, OrderedRestore, std::less<>> restores_ ABSL_GUARDED_BY(mu_);  // likewise
  int64_t forgotten_epoch_ ABSL_GUARDED_BY(mu_) = 0;  // no epoch of a model that was erased was greater
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

// Holds the mutex to change something, when no call to the log is under way; whose answers have come meanwhile is called
// when it is free again. Who only asks takes the mutex itself, and does not wait for the log's disk.
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

#endif  // PARAMSHARD_SERVER_CLUSTER_COORDINATOR_H_
