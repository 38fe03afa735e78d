// Coordinator of a world: takes the messages, votes and values of its nodes. Independent of the wire format.
#ifndef PARAMSHARD_SERVER_WORLD_COORDINATOR_H_
#define PARAMSHARD_SERVER_WORLD_COORDINATOR_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/terms/cluster.h"
#include "server/terms/node_messages.h"
#include "server/terms/world_terms.h"
#include "server/world/checkpoint_relay.h"
#include "server/world/commit_votes.h"
#include "server/world/decision_log.h"
#include "server/world/model_epochs.h"
#include "server/world/quorum.h"
#include "server/world/rendezvous_store.h"
#include "server/world/world_context.h"

namespace paramshard::server {

// Thread-safe. An epoch of a model starts when every node has joined (or, where each holds a replica, as many as the
// policy needs) and their reports attach all their ranks, with equal fingerprints, histories, versions and commit
// numbers, or with differences that a replica heals (PlanEpoch). Its number is greater than the numbers of all earlier
// epochs of the model and of those that reports name. At most one decision is made for each (epoch, commit number). It
// is answered as long as it is remembered (kKeptDecisions), also after the epoch has ended.
//
//   Coordinator coordinator(/*nodes=*/2);
//   coordinator.Join(0, /*device_count=*/2, &sink);   // every node once
//   coordinator.Step(0, ModelReport{.model = "m", .shard_size = 2, .attached_ranks = {0, 1}});
//   auto decision = coordinator.Vote(0, vote, absl::Seconds(5));
class Coordinator {
 public:
  struct Options {
    int nodes = 1;
    WorldTerms terms = {};                 // of node 0
    std::vector<ClosedEpoch> closed = {};  // epochs of an earlier coordinator; the first one of each history counts
    DecisionLog* log = nullptr;            // takes epochs and decisions before any node is told; may be null
    QuorumPolicy quorum = {};
    std::vector<int> device_counts = {};  // by node, if an earlier coordinator knew them
  };
  explicit Coordinator(const Options& options);
  explicit Coordinator(int nodes) : Coordinator(Options{.nodes = nodes}) {}

  // Adds a node. `sink` is called until Leave has returned. Errors: see Membership::Join; UNAVAILABLE stopped.
  absl::Status Join(int node, int device_count, NodeSink* sink);
  // Replaces the sink of a node that is present; Moved is the last message to the old one. UNAVAILABLE stopped.
  absl::Status Move(int node, int64_t connection, NodeSink* sink);
  // Sets the address where mirrors reach a node.
  void SetAddress(int node, absl::string_view address);
  // Removes a lost node: forgets its reports and ends its running epochs with UNAVAILABLE naming it.
  void Leave(int node);
  // Until Stop, starts epochs without lost nodes that were waited for long enough, and ends epochs with cut links when
  // all nodes have had the time to report theirs. Called once, on its own thread, if the policy permits fewer nodes.
  void ServeAbsences();

  // Takes a message of a node. Ignores messages about epochs that have ended. Errors of saves and restores: see
  // Cluster::Send.
  absl::Status Step(int node, const FromNode& message);

  // See Cluster.
  std::vector<int> device_counts() const;
  std::vector<std::string> addresses() const;
  WorldView ViewWorld();
  absl::StatusOr<HealingAnswer> OrderHealing(absl::string_view model, int donor);
  std::optional<int> healing_donor(absl::string_view model);
  std::map<std::string, std::string> WaitingModels();
  std::vector<int> restored_nodes(absl::string_view model, absl::uint128 id) const;
  int nodes() const { return nodes_; }
  const WorldTerms& terms() const { return terms_; }
  // Waits until all nodes are present. DEADLINE_EXCEEDED names the missing ones; UNAVAILABLE stopped.
  absl::Status AwaitWorld(absl::Duration timeout);

  // Identity of a call that waits for an answer.
  struct Wait {
    std::string model = {};
    std::optional<std::string> key = {};  // of a value or parts; unset for a vote
    std::optional<int> node = {};         // the voter, or the reader of parts
    int64_t waiter = 0;
  };
  using VoteAnswered = CommitVotes::Answered;
  using ValueAnswered = RendezvousStore::ValueReaders::Answered;
  using Parts = RendezvousStore::Parts;
  using PartsAnswered = RendezvousStore::PartsReaders::Answered;

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

  // Ends calls in progress and later ones with UNAVAILABLE. Only votes differ: decided commits are still answered, and
  // others are ABORTED, because nothing is decided any more. Idempotent.
  void Stop();

 private:
  // Refuses a report that is larger than a daemon's can be.
  void TakeReport(int node, const ModelReport& report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the number of models that the node has reported.
  int64_t ModelsOf(int node) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Erases a model that no node has.
  void EraseIfForgotten(absl::string_view name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns how long a returner still waits before it ends the running epoch of some model.
  absl::Duration HeldBack(int node, SteadyTime now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns when epochs are to be looked at again; unset: at the next change.
  std::optional<SteadyTime> NextLook(SteadyTime now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the rendezvous of the running epoch. ABORTED, UNAVAILABLE there is none; FAILED_PRECONDITION `node` takes
  // no part.
  absl::StatusOr<RendezvousStore*> FindRendezvous(absl::string_view model, int64_t epoch, int node)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int nodes_;
  const WorldTerms terms_;
  mutable absl::Mutex mu_;
  WorldContext world_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> addresses_ ABSL_GUARDED_BY(mu_);  // by node
  Models models_ ABSL_GUARDED_BY(mu_);
  SaveRelay saves_ ABSL_GUARDED_BY(mu_){&world_, &models_};
  RestoreRelay restores_ ABSL_GUARDED_BY(mu_){&world_, &models_};
  int64_t last_waiter_ ABSL_GUARDED_BY(mu_) = 0;      // over all models and epochs, so that a wait is unique
  int64_t forgotten_epoch_ ABSL_GUARDED_BY(mu_) = 0;  // largest epoch of any erased model
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_COORDINATOR_H_
