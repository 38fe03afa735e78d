// The daemons of one world as one of them sees them: starts and ends of epochs, decisions of commits.
//
// Node 0 coordinates. A daemon that is a world of its own uses the same interface with a coordinator in its own
// process. Start here: MakeLocalCluster and MakeCoordinatorCluster (coordinator_cluster.h), MakeRemoteCluster
// (remote_cluster.h).
#ifndef PARAMSHARD_SERVER_TERMS_CLUSTER_H_
#define PARAMSHARD_SERVER_TERMS_CLUSTER_H_

#include <cstdint>
#include <functional>
#include <map>
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
#include "server/terms/node_messages.h"
#include "server/terms/restore_message.h"
#include "server/terms/save_message.h"

namespace paramshard::server {

// A node's state as node 0 knows it, and its fate when the next epoch begins.
struct NodeState {
  enum class Fate : uint8_t {
    kUnknown,  // the node is absent or has not reported; if its state differs it is not given up
    kGiven,    // it goes to the others
    kSame,     // it equals the state that the others get
    kGivenUp,
    kNone,  // there is no state, or none to train on from
  };

  int node = 0;
  Fate fate = Fate::kUnknown;
  std::string history_id = {};  // set, with the commit number, if the state is known
  int64_t commit_number = 0;
  std::string why_none = {};
};

struct HealingAnswer {
  bool ordered = false;  // false: all known nodes have one state, and there is nothing to do
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
  // Order to save the state that the commit replaces: hold it before the commit is applied.
  std::optional<SaveOrder> save = {};
  // Client states of the ranks of PreviousNode (healing_plan.h), by rank. Unset in late answers.
  std::optional<std::vector<std::string>> previous_client_states = {};
};

struct CommitVote {
  std::string model;
  std::string history_id = {};  // of the epoch, as EpochStart names it
  int64_t epoch = 0;
  int64_t commit_number = 0;
  CommandsThrough commands = {};  // the commit is the last of them
  std::vector<RankSum> sums;
  std::vector<std::string> client_states = {};  // by rank of the node, if another node is to keep them
  // Writes the decision before it takes effect: at node 0 before any daemon is told, elsewhere before Vote returns.
  // Must not wait or call back, since the coordinator's lock is held. If it fails nothing is decided. Not sent.
  std::function<absl::Status(const CommitDecision& decision)> write_down = nullptr;
};

// How long a vote waits for the decision before it is repeated.
inline constexpr absl::Duration kVoteWait = absl::Seconds(5);

// Query about a commit on which a server has voted that died since.
struct CommitQuery {
  std::string model = {};
  std::string history_id = {};
  int64_t epoch = 0;
  int64_t commit_number = 0;
};

// The last epoch of a model under an earlier node 0, as the present one knows it.
struct ClosedEpoch {
  struct Decided {
    int64_t epoch = 0;
    int64_t commit_number = 0;
    CommitDecision decision = {};
  };

  std::string model = {};
  std::string history_id = {};
  int64_t epoch = 0;
  int64_t commit_number = 0;                  // the last decided one
  std::vector<int> active = {};               // nodes of the epoch, ascending; empty: not known
  std::optional<Decided> last_decision = {};  // of this history
  std::vector<int> device_counts = {};        // of the world, by node
  // Histories that restores replaced while nodes were absent, which may have gone on in them.
  std::vector<std::string> replaced = {};
  // True if a node 0 that does not know this epoch may have begun later ones.
  bool may_be_old = false;
};

// A node that is not connected to node 0.
struct AbsentNode {
  int node = 0;
  absl::Duration absent_for = absl::ZeroDuration();  // since it was lost; if it never joined, since node 0 began
  int64_t losses = 0;                                // how often it was lost
};

// A node that is back, but excluded from epochs for a while because of repeated losses.
struct HeldBackNode {
  int node = 0;
  absl::Duration held_for = absl::ZeroDuration();  // from now on
  int64_t losses = 0;
};

// Node 0's knowledge of the world's nodes.
struct WorldView {
  std::vector<AbsentNode> absent = {};       // ascending
  std::vector<std::string> cut_links = {};   // "node 1 (10.9.0.11) and node 2 (10.9.0.12)"
  std::vector<int> left_out = {};            // nodes that epochs leave out because of cut links, if they may; ascending
  std::vector<HeldBackNode> held_back = {};  // ascending
};

// Key-value rendezvous of one epoch of one model; values end with the epoch.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  virtual absl::Status Put(absl::string_view key, absl::string_view value) = 0;
  // Waits for the value that `node` puts under the key. DEADLINE_EXCEEDED names both.
  virtual absl::StatusOr<std::string> Get(int node, absl::string_view key, absl::Duration timeout) = 0;

  // Puts one part for each node of the world, by node, of which each reads only its own. Called once for a key. Parts
  // are dropped when a commit of the epoch is decided.
  virtual absl::Status PutParts(absl::string_view key, const std::vector<std::string>& parts) = 0;
  // Waits for the parts that all nodes of the epoch put for this one. Returns them by node of the world, empty for
  // nodes outside the epoch. DEADLINE_EXCEEDED names a node that has put none.
  virtual absl::StatusOr<std::vector<std::string>> GetParts(absl::string_view key, absl::Duration timeout) = 0;
};

// Receiver of the coordinator's messages. The cluster calls it on a thread of its own, never while a call into the
// cluster is on the stack.
class EpochListener {
 public:
  virtual ~EpochListener() = default;
  // An epoch starts when every rank of the nodes that take part is attached. Messages about a save: at node 0 parts and
  // requests, elsewhere all others; an order may come twice, and with a decision too. Messages about a restore: at node
  // 0 sums, progress, reports, requests, lost followers and the need to roll back; elsewhere all others.
  virtual void Hear(const ToNode& message) = 0;
};

class Cluster {
 public:
  virtual ~Cluster() = default;

  virtual int node() const = 0;
  virtual int nodes() const = 0;
  // Devices of every node, in order. Final once AwaitWorld has returned OK; 0 for a node that never joined.
  virtual std::vector<int> device_counts() const = 0;
  // Returns, by node, HOST:PORT where mirrors reach it; empty for a node that they cannot reach, or that has not joined,
  // and for all on nodes other than 0. Node 0 does not know its own.
  virtual std::vector<std::string> addresses() const { return std::vector<std::string>(nodes()); }
  // Returns the present nodes. Nothing on nodes other than 0.
  virtual std::optional<WorldView> ViewWorld() { return std::nullopt; }
  // OK while node 0 is reached. UNAVAILABLE why it is not; no epoch begins until it is again.
  virtual absl::Status CheckCoordinator() const { return absl::OkStatus(); }
  // Returns true if replicas may go on without some nodes. False on nodes other than 0.
  virtual bool may_be_fewer() const { return false; }
  // Waits until every node has joined. DEADLINE_EXCEEDED names the missing nodes; UNAVAILABLE stopped.
  virtual absl::Status AwaitWorld(absl::Duration timeout) = 0;

  // Takes a person's order that the state of node `donor` is the right one. The next epoch begins with it on all nodes;
  // nodes with another state give that up. The epoch begins a history of its own, so that a node which comes back with
  // a given-up state is not taken for one of them. The order ends when an epoch has begun with one state, when the
  // donor's state changes, with the next order, or with node 0's server. INVALID_ARGUMENT no such node; NOT_FOUND no
  // node has the model; FAILED_PRECONDITION this is not node 0, nodes hold no replicas or have different specs, the
  // donor has no state to train on from, or others train without it; UNAVAILABLE the donor is absent or has not
  // reported, all nodes roll back to a checkpoint, or this node has stopped.
  virtual absl::StatusOr<HealingAnswer> OrderHealing(absl::string_view model, int donor);
  // Returns the donor of an order that has not ended. Nothing on nodes other than 0.
  virtual std::optional<int> healing_donor(absl::string_view) { return std::nullopt; }
  // Returns, by name, why no epoch of a model starts although trainers wait, or why the last start was refused, in
  // words. A node may lack a model that trainers of other nodes wait for. Empty on nodes other than 0.
  virtual std::map<std::string, std::string> WaitingModels() { return {}; }

  // Sets the listener, which is called from here on. It must outlive the cluster, or be reset with null (which waits
  // for calls in progress).
  virtual void SetListener(EpochListener* listener) = 0;

  // Sends a message to the coordinator. UNAVAILABLE it is not reached; what it has to know then is sent again when it
  // is. Messages about an epoch that has ended are ignored.
  //
  // ModelReport: a change of this node's part of a model: it was created, a trainer attached or left, a state was
  // imported. An epoch starts when all ranks of the world are attached, with equal specs, histories and commit numbers.
  // Histories are equal if their ids are, or if their lineages are and no node has made a commit since: then all take
  // node 0's id. When an epoch starts, ends or is refused, the attached ranks of all reports are forgotten: report them
  // again for the next one.
  //
  // A node that has lost its part, or has initial values while others have trained, is healed at the epoch's start from
  // the node after it, which must hold a replica and keep its ranks' client states, if all states of the other nodes
  // are the same. If that is not possible no epoch starts: with a --save-dir node 0's listener gets a RollbackNeed and
  // trainers wait for its result; else they are refused.
  //
  // If node 0 permits fewer nodes, an epoch of a model whose nodes all hold replicas starts without nodes that are lost
  // for longer than its timeout. A node that comes back takes part again when all its ranks are attached: the epoch
  // ends with its next commit, and the following epoch gives the node the state.
  //
  // ModelDeleted: a waiting vote on one of its commits returns CANCELLED or ABORTED.
  //
  // EndEpoch: ends the epoch for all nodes because of a local event, and tells all listeners. With bad links, if node 0
  // permits fewer nodes, it waits a moment for the reports of others, and then leaves out the node that most bad links
  // name, and the next, until every one has an end outside, if enough others remain: never node 0, and of two nodes
  // rather the higher one. They are tried again after a time that grows.
  //
  // CommandReports: if nodes differ the epoch ends with FAILED_PRECONDITION naming both ranks and commands. Ignored if
  // not asked for.
  //
  // RankDetached: all listeners hear of the last command that all ranks send. The epoch ends with its reason when all
  // ranks have detached, or when another rank has sent a later command and every node has carried out all up to the
  // last one (CommandsCarriedOut).
  //
  // SaveMessage: node 0 to all other nodes, other nodes to node 0. From an order until the save's end, a decision about
  // the commit after its step carries the order, and a lost node counts as having answered with a part that says so.
  // Messages that only the other side may send are ignored. ABORTED an order: the commit after its step is decided
  // already. UNAVAILABLE a node is absent or was not in the last epoch (names it), or this one has stopped.
  //
  // RestoreMessage: likewise. From an order until it is given up, or followed by the next one, a lost node counts as
  // having reported its loss. UNAVAILABLE the order needs a node that is absent (names it), or this node has stopped.
  // FAILED_PRECONDITION an order to roll back, while all nodes have a state.
  virtual absl::Status Send(const FromNode& message) = 0;

  // Votes with the sums of all ranks of this node, and waits for the decision over all nodes' votes. A commit with a
  // non-finite element anywhere is skipped by all. A decision outlives its epoch: a repeated vote is answered with it.
  // Nothing is decided while votes name different commands: the epoch ends as soon as nodes have reported which.
  //
  // Once a node has voted it must not guess. While node 0 cannot be reached the vote is **in doubt**, and this call
  // repeats it until node 0 answers, for a bounded time. Errors:
  //   ABORTED              the epoch ended without a decision: nothing is applied anywhere
  //   FAILED_PRECONDITION  nodes vote on different commits (names both; ends the epoch)
  //   INVALID_ARGUMENT     the sums are not those of this node's ranks
  //   DATA_LOSS            the commit stays in doubt: node 0 timed out, or was restarted and does not know the epoch
  //   CANCELLED            the model was deleted on this node
  //   UNAVAILABLE          Stop, on this node, which leaves the commit in doubt
  virtual absl::StatusOr<CommitDecision> Vote(const CommitVote& vote) = 0;

  // Asks for the decision of a commit that a server of this node has voted on, without voting. First ends the commit's
  // epoch, so that nothing is decided any more; then returns the decision, or ABORTED. Waits as long as a vote. Errors:
  // ABORTED, DATA_LOSS and UNAVAILABLE as for a vote.
  virtual absl::StatusOr<CommitDecision> QueryCommit(const CommitQuery& query) = 0;

  // Makes the rendezvous of the engines of an epoch. Valid while the cluster lives.
  virtual std::unique_ptr<Rendezvous> MakeRendezvous(absl::string_view model, int64_t epoch) = 0;

  // Returns, at node 0, the nodes that got the order of this restore and node 0 itself, ascending. If node 0 permits
  // fewer nodes, keeps its decisions on a disk, and all nodes hold replicas, these may be only the present nodes, if
  // they are enough: a node that comes back later has a replaced state, whatever its commit number is.
  virtual std::vector<int> restored_nodes(absl::string_view, absl::uint128) {
    std::vector<int> all(nodes());
    std::iota(all.begin(), all.end(), 0);
    return all;
  }

  // Leaves the world and ends calls in progress. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TERMS_CLUSTER_H_
