// The daemons of one world, as one of them sees it: who starts and ends epochs, who decides commits.
//
// Node 0 coordinates. A daemon that is a world of its own uses the same interface with a coordinator in its own
// process. Start here: MakeLocalCluster and MakeCoordinatorCluster (coordinator_cluster.h), MakeRemoteCluster
// (remote_cluster.h).
#ifndef PARAMSHARD_SERVER_TERMS_CLUSTER_H_
#define PARAMSHARD_SERVER_TERMS_CLUSTER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/terms/restore_news.h"
#include "server/terms/save_news.h"

namespace paramshard::server {

// One daemon's part of a model.
struct ModelReport {
  std::string model;
  uint64_t spec_fingerprint = 0;
  int64_t commit_number = 0;
  int64_t version = 0;
  std::string lineage;              // how the state began that the numbers count from; equal on nodes that began alike
  std::string history_id;           // which beginning it was
  bool untouched = false;           // there was no commit since
  bool fresh = false;               // it has its initial values: nothing has been done to it since it was created
  int64_t last_epoch = 0;           // of the model on this node, in whatever process: the next one's number is greater
  int shard_size = 0;               // ranks of one shard group; sums of the first group make the norm
  std::vector<int> attached_ranks;  // of the world, served by this daemon, with a trainer that waits for an epoch
  // Whether the node has the client states of the commit number of the ranks of another one, where daemons hold replicas.
  bool keeps_previous = false;
  // That one, PreviousNode (healing_plan.h) in the epoch of the commit; unset: any, because no rank has sent one.
  std::optional<int> previous = {};
  // No epoch of fewer replicas: gradients of all of them are summed, not averaged.
  bool needs_every_node = false;
  // Why this node has no state of it any more; then all says nothing but the spec, who is attached, and the last epoch.
  absl::Status lost = {};
};

// At the start of an epoch a node gets the state from another one that holds a replica of it.
struct Healing {
  // Which state the receiver has until then, though others have not gone on from it.
  struct GivenUp {
    std::string history_id = {};
    int64_t commit_number = 0;
    friend bool operator==(const GivenUp&, const GivenUp&) = default;
  };

  int receiver = 0;
  int donor = 0;
  // By a person's order (OrderHealing). A receiver that has another state by now ends the epoch.
  std::optional<GivenUp> gives_up = {};
  friend bool operator==(const Healing&, const Healing&) = default;
};

// From which state a history goes on that begins with an epoch.
struct HistoryFork {
  std::string history_id = {};
  std::string lineage = {};
  int64_t commit_number = 0;
};

// Names what all nodes begin an epoch with. A node that was untouched takes over the id.
struct EpochStart {
  int64_t epoch = 0;
  std::string lineage = {};
  std::string history_id = {};
  std::vector<int> active = {};        // the nodes that take part, ascending
  std::vector<Healing> healings = {};  // before anything else; who gives a state gets none
  // The history begins here, with the state that nodes have which are not healed. Its lineage is its id.
  std::optional<HistoryFork> fork = {};
};

// What node 0 knows of a node's state, and what becomes of it when the next epoch begins.
struct NodeState {
  enum class Fate : uint8_t {
    kUnknown,  // it is not here, or has not said what it has: where that is another one nobody has given it up
    kGiven,    // to the others
    kSame,     // it is the one that the others get, too
    kGivenUp,
    kNone,  // there is none, or none that anybody would train on from
  };

  int node = 0;
  Fate fate = Fate::kUnknown;
  std::string history_id = {};  // and the commit number: of a state that is known
  int64_t commit_number = 0;
  std::string why_none = {};
};

struct HealingAnswer {
  bool ordered = false;  // false: all nodes that are known have one state, and there is nothing to do
  std::vector<NodeState> nodes;
};

struct RankSum {
  int rank = 0;  // of the world
  double square_sum = 0;
  int64_t non_finite_count = 0;
};

struct CommitDecision {
  bool apply = false;     // false: skip
  double square_sum = 0;  // of the first replica, ranks in order
  int64_t non_finite_count = 0;
  // What is to be held before it is applied: the state that it replaces is being saved.
  std::optional<SaveOrder> save = {};
  // What the ranks of PreviousNode (healing_plan.h) have sent with the commit, by rank. None in answers that come late.
  std::optional<std::vector<std::string>> previous_client_states = {};
};

// All commands of an epoch up to one of them, which every rank of a node has sent: equal where they are the same but for
// the client states.
struct CommandsThrough {
  int64_t number = 0;  // of the last one; 0: none
  absl::uint128 hash = 0;

  friend bool operator==(const CommandsThrough& a, const CommandsThrough& b) {
    return a.number == b.number && a.hash == b.hash;
  }
};

// One command in words, which are equal where commands are, but for the client state.
struct CommandInWords {
  int64_t number = 0;
  int rank = 0;  // of the world, that sent it first
  std::string text = {};
};

struct CommitVote {
  std::string model;
  std::string history_id = {};  // of the epoch, as EpochStart names it
  int64_t epoch = 0;
  int64_t commit_number = 0;
  CommandsThrough commands = {};  // the commit is the last of them
  std::vector<RankSum> sums;
  std::vector<std::string> client_states = {};  // by rank of the node, where another node is to keep them
  // Writes the decision down before anybody acts on it: at node 0 before any daemon is told, elsewhere before Vote
  // returns. It does not wait and calls nobody back: the coordinator's lock is held. Where it fails nothing is decided.
  // It does not travel.
  std::function<absl::Status(const CommitDecision& decision)> write_down = nullptr;
};

// How long a vote waits for the decision before it is repeated.
inline constexpr absl::Duration kVoteWait = absl::Seconds(5);

// Names a commit whose vote was cast by a server that has died since.
struct CommitQuery {
  std::string model = {};
  std::string history_id = {};
  int64_t epoch = 0;
  int64_t commit_number = 0;
};

// What a node 0 knows of a model from the one before it: that one's last epoch of the model, which is over.
struct ClosedEpoch {
  struct Decided {
    int64_t epoch = 0;
    int64_t commit_number = 0;
    CommitDecision decision = {};
  };

  std::string model = {};
  std::string history_id = {};
  int64_t epoch = 0;
  int64_t commit_number = 0;                  // the last one that was decided
  std::vector<int> active = {};               // nodes of the epoch, ascending; none where they are not known
  std::optional<Decided> last_decision = {};  // of this history
  std::vector<int> device_counts = {};        // of the world, by node
  // Histories that restores have replaced while nodes were away, which may have gone on in them.
  std::vector<std::string> replaced = {};
  // A node 0 that does not know this one may have begun later epochs.
  bool may_be_old = false;
};

// A daemon could not connect to another one, though both speak with node 0.
struct BadLink {
  int peer = 0;                   // the other node
  std::string address = {};       // of this daemon, in the data network
  std::string peer_address = {};  // of the other one
};

// A node that is not connected to node 0.
struct AbsentNode {
  int node = 0;
  absl::Duration absent_for = absl::ZeroDuration();  // since it was lost, or since node 0 began where it never came
  int64_t losses = 0;                                // how often it was lost
};

// A node that is back, and that epochs go on without for a while because it was lost again and again.
struct HeldBackNode {
  int node = 0;
  absl::Duration held_for = absl::ZeroDuration();  // from now on
  int64_t losses = 0;
};

// What node 0 knows of who is here.
struct WorldView {
  std::vector<AbsentNode> absent = {};      // ascending
  std::vector<std::string> cut_links = {};  // "node 1 (10.9.0.11) and node 2 (10.9.0.12)"
  std::vector<int> left_out = {};  // nodes that epochs are without because of them, where they may be; ascending
  std::vector<HeldBackNode> held_back = {};  // ascending
};

// Key-value rendezvous of one epoch of one model; values end with the epoch.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  virtual absl::Status Put(absl::string_view key, absl::string_view value) = 0;
  // What `node` has put under the key: waits for it. DEADLINE_EXCEEDED names both.
  virtual absl::StatusOr<std::string> Get(int node, absl::string_view key, absl::Duration timeout) = 0;

  // What this node has for each node of the world, by node: others read their own part alone. Once for a key. Parts are
  // forgotten when a commit of the epoch is decided.
  virtual absl::Status PutParts(absl::string_view key, const std::vector<std::string>& parts) = 0;
  // What every node of the epoch has put for this one, by node of the world; of others nothing. Waits for all.
  // DEADLINE_EXCEEDED names one that has put nothing.
  virtual absl::StatusOr<std::vector<std::string>> GetParts(absl::string_view key, absl::Duration timeout) = 0;
};

// The cluster calls it from a thread of its own, and never while a call into the cluster is on the stack.
class EpochListener {
 public:
  virtual ~EpochListener() = default;
  // Every rank of the nodes that take part is attached.
  virtual void OnEpochStart(const std::string& model, const EpochStart& start) = 0;
  // Some rank of the world sends no command behind this one. Said again when it is an earlier one. The node answers
  // with ReportCarriedOut.
  virtual void OnLastCommand(const std::string& model, int64_t epoch, int64_t command) = 0;
  // Nodes may have sent different commands. The node answers with ReportCommands; where `unless` has a number only if it
  // has sent that command too, and the hash through it is another one.
  virtual void OnCommandsWanted(const std::string& model, int64_t epoch, const CommandsThrough& unless) = 0;
  virtual void OnEpochEnd(const std::string& model, int64_t epoch, const absl::Status& why) = 0;
  // Every rank is attached, and no epoch can start: nodes hold different specs or states.
  virtual void OnEpochRefused(const std::string& model, const absl::Status& why) = 0;
  // Somebody's word about a save. At node 0 parts and wishes; elsewhere all others. An order may come a second time,
  // and by a decision as well.
  virtual void OnSaveNews(const SaveNews& news) = 0;
  // Somebody's word about a restore. At node 0 sums, progress, reports, wishes, lost followers and the need to go back;
  // elsewhere all others.
  virtual void OnRestoreNews(const RestoreNews& news) = 0;
};

class Cluster {
 public:
  virtual ~Cluster() = default;

  virtual int node() const = 0;
  virtual int nodes() const = 0;
  // Devices of every node, in order. Known for good when AwaitWorld has returned OK; 0 for a node that never joined.
  virtual std::vector<int> device_counts() const = 0;
  // Who is here now. Nothing where that is not known: elsewhere than at node 0.
  virtual std::optional<WorldView> ViewWorld() { return std::nullopt; }
  // OK while node 0 is reached. UNAVAILABLE: no epoch begins until it is again; says why it is not.
  virtual absl::Status CheckNodeZero() const { return absl::OkStatus(); }
  // Whether replicas may go on without some of the nodes. False where that is not known: elsewhere than at node 0.
  virtual bool may_be_fewer() const { return false; }
  // Waits until every node has joined. DEADLINE_EXCEEDED names the missing nodes; UNAVAILABLE stopped.
  virtual absl::Status AwaitWorld(absl::Duration timeout) = 0;

  // A person's word that the state of node `donor` is the right one: the next epoch begins with it on all nodes, and
  // those that have another one give that up. It begins a history of its own, so that nobody who comes back with the
  // state that was given up is taken for one of them. The order ends when an epoch has begun with one state, when the
  // donor has another one, with the next order, or with node 0's server. INVALID_ARGUMENT no such node; NOT_FOUND no node
  // has the model; FAILED_PRECONDITION this is not node 0, nodes do not hold replicas, or have different specs, the donor
  // has no state that anybody would train on from, or others train without it; UNAVAILABLE it is not here or has not said
  // what it has, all go back to a saved step, or this node has stopped.
  virtual absl::StatusOr<HealingAnswer> OrderHealing(absl::string_view model, int donor);
  // Of an order that has not ended. Nothing where that is not known: elsewhere than at node 0.
  virtual std::optional<int> healing_donor(absl::string_view) { return std::nullopt; }

  // Calls of the listener begin here. It must outlive the cluster or be reset with null (which waits for calls in
  // progress).
  virtual void SetListener(EpochListener* listener) = 0;

  // This node's part of a model has changed: created, a trainer attached or left, state imported. When all ranks of the
  // world are attached, with equal specs, histories and commit numbers, an epoch starts. Histories are equal when their
  // ids are, or when their lineages are and no node has made a commit since: then all take node 0's id. When an epoch
  // starts, ends or is refused the attached ranks of all reports are forgotten: report them again for the next one.
  // A node that has lost its part, or has initial values where others have trained, is healed at the epoch's start from
  // the node behind it, which must hold a replica and keep its ranks' client states, while all who have a state have the
  // same one. Where that cannot be none starts: with a --save-dir node 0's listener hears of a RollbackNeed, and trainers
  // wait for what comes of it; else they are refused.
  //
  // Where node 0 permits fewer nodes, an epoch of a model that all hold replicas of starts without those that are lost
  // for longer than its patience. One that comes back takes part again when all its ranks are attached: then the epoch
  // ends with its next commit, and the one behind it gives the node the state.
  virtual void Report(const ModelReport& report) = 0;
  // The model is gone from this node. A vote on one of its commits that waits returns CANCELLED or ABORTED.
  virtual void Forget(absl::string_view model) = 0;
  // A local event ends the epoch for all nodes, and all listeners are told. Ignored for an epoch that is over.
  virtual void EndEpoch(absl::string_view model, int64_t epoch, const absl::Status& why) = 0;
  // The same, for want of connections: to all nodes of these links, each of which was tried. Where node 0 permits fewer
  // nodes it waits for a moment for what others found, and epochs are without the nodes of a smallest set that has an end
  // of every link, if enough others are left; node 0 is never left out, and of two nodes rather the higher one. They are
  // tried again after a time that grows.
  virtual void EndOnBadLinks(absl::string_view model, int64_t epoch, const absl::Status& why,
                             const std::vector<BadLink>& links) = 0;
  // The latest commands that all of this node's ranks have sent, in their order: what OnCommandsWanted asks for. Nodes
  // that differ end the epoch with FAILED_PRECONDITION naming both ranks and commands. Ignored where nobody has asked.
  virtual void ReportCommands(absl::string_view model, int64_t epoch, const std::vector<CommandInWords>& commands) = 0;

  // A rank of this node has sent its `command_count`-th command and sends no other, and nothing needs its trainer any
  // more. All listeners hear of the last command that all ranks send. The epoch ends with `why` when another rank has
  // sent a later one and everything up to the last one is carried out on every node, or when all ranks have detached.
  virtual void ReportDetached(absl::string_view model, int64_t epoch, int rank, int64_t command_count,
                              const absl::Status& why) = 0;
  // Everything up to this command is carried out and answered on this node; `more`: a rank of it has sent a later one.
  // Said again when that changes.
  virtual void ReportCarriedOut(absl::string_view model, int64_t epoch, int64_t command, bool more) = 0;

  // Votes with the sums of all ranks of this node, and waits for the decision over all nodes' votes. A commit with a
  // non-finite element anywhere is skipped by all. A decision outlives its epoch: a repeated vote is answered with it.
  // Nothing is decided while votes name different commands: then the epoch ends as soon as nodes have said which.
  //
  // Once a node has voted it must not guess. While node 0 cannot be reached the vote is **in doubt**, and this call
  // repeats it until node 0 answers, for a bounded time. Errors:
  //   ABORTED              the epoch ended without a decision: nothing is applied anywhere
  //   FAILED_PRECONDITION  nodes vote on different commits (names both; ends the epoch)
  //   INVALID_ARGUMENT     the sums are not those of this node's ranks
  //   DATA_LOSS            the doubt stays: node 0 did not answer in time, or was restarted and does not know the epoch
  //   CANCELLED            Forget, on this node
  //   UNAVAILABLE          Stop, on this node, which leaves the commit in doubt
  virtual absl::StatusOr<CommitDecision> Vote(const CommitVote& vote) = 0;

  // Asks what became of a commit that a server of this node has voted on, without voting: its epoch is ended, so that
  // nothing is decided any more, and then the answer is the decision, or ABORTED. Waits as a vote does, for as long.
  // Errors: ABORTED, DATA_LOSS and UNAVAILABLE as for a vote.
  virtual absl::StatusOr<CommitDecision> QueryCommit(const CommitQuery& query) = 0;

  // Makes the rendezvous where the engines of one epoch meet. It is valid while the cluster lives.
  virtual std::unique_ptr<Rendezvous> MakeRendezvous(absl::string_view model, int64_t epoch) = 0;

  // Tells the others of a save: node 0 all other nodes, they node 0. From an order until the end a decision about the
  // commit after its step carries it, and a node that is lost has answered it with a part that says so. What the other
  // side does not say is ignored. Errors:
  //   ABORTED      an order: the commit after its step is decided already
  //   UNAVAILABLE  a node is not here or was not in the last epoch (names it), or this one has stopped; elsewhere:
  //                node 0 is not reached
  virtual absl::Status TellSave(const SaveNews& news) = 0;

  // Tells the others of a restore: node 0 all other nodes, they node 0. A node that is lost has reported so, from an
  // order until it is given up or followed by the next one. What the other side does not say is ignored. UNAVAILABLE:
  // an order, and a node is not here (names it); this one has stopped; elsewhere: node 0 is not reached.
  // FAILED_PRECONDITION: an order to go back that nobody has asked for, and all nodes have a state.
  virtual absl::Status TellRestore(const RestoreNews& news) = 0;
  // At node 0: nodes that the order of this restore has gone to, this one too, ascending. Where node 0
  // permits fewer nodes, holds what it decides on a disk, and all hold replicas, that may be those that are here, if
  // they are enough: one that comes back later has a state that was replaced, whatever its commit number is.
  virtual std::vector<int> restored_nodes(absl::string_view, absl::uint128) {
    std::vector<int> all(nodes());
    std::iota(all.begin(), all.end(), 0);
    return all;
  }

  // Leaves the world: ends calls in progress. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TERMS_CLUSTER_H_
