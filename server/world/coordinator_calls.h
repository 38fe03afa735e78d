// Calls of a node to the coordinator that wait for an answer: votes, queries and values.
#ifndef PARAMSHARD_SERVER_WORLD_COORDINATOR_CALLS_H_
#define PARAMSHARD_SERVER_WORLD_COORDINATOR_CALLS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include <grpcpp/client_context.h>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "paramshard/v1/cluster.pb.h"
#include "server/base/steady_cond_var.h"
#include "server/terms/cluster.h"
#include "server/world/coordinator_link.h"
#include "server/world/remote_cluster.h"

namespace paramshard::server {

// "node 0 (10.9.0.10:7070)"
std::string CoordinatorName(const RemoteOptions& options);

// Thread-safe. Calls use the link that was set last. Stop cancels all of them.
class CoordinatorCalls {
 private:
  struct Ballot;

 public:
  // A call that Stop cancels, and Forget too if it belongs to a ballot.
  class Call {
   public:
    Call(CoordinatorCalls& calls, absl::Duration timeout, const Ballot* ballot = nullptr);
    ~Call();
    grpc::ClientContext context;

   private:
    CoordinatorCalls& calls_;
  };

  // `options` outlives it.
  explicit CoordinatorCalls(const RemoteOptions& options) : options_(options), link_(MakeCoordinatorLink(options)) {}

  std::shared_ptr<CoordinatorLink> link() const;
  void SetLink(std::shared_ptr<CoordinatorLink> link);

  // See Cluster.
  absl::StatusOr<CommitDecision> Vote(const CommitVote& vote);
  absl::StatusOr<CommitDecision> QueryCommit(const CommitQuery& query);
  absl::Status Put(const v1::PutValueRequest& request);
  absl::StatusOr<v1::GetValueResponse> Get(v1::GetValueRequest request, absl::Duration timeout);

  // Ends votes and queries about the model, which is deleted.
  void Forget(absl::string_view model);
  // Ends all calls, and later ones at once.
  void Stop();

 private:
  // A waiting vote, or a query about a commit. Forget ends it.
  struct Ballot {
    std::string model;
    int64_t commit_number = 0;
    bool forgotten = false;  // guarded by mu_
  };
  // Makes one call. Returns nothing if node 0 still waits for other nodes.
  using AskOnce = absl::FunctionRef<absl::StatusOr<std::optional<CommitDecision>>(grpc::ClientContext& context)>;

  // Asks until node 0 answers, at most for RemoteOptions::doubt_timeout.
  absl::StatusOr<CommitDecision> Ask(Ballot ballot, absl::Duration wait, AskOnce ask);
  absl::StatusOr<CommitDecision> Repeat(const Ballot& ballot, absl::Duration wait, AskOnce ask);
  // Returns false if the vote must not be repeated.
  bool Pause(const Ballot& ballot, absl::Duration pause);
  // Returns why a vote is not repeated.
  absl::Status GivenUpError(const Ballot& ballot);
  void ObserveRoundTrip(absl::Duration took, const v1::VoteResponse& response) const;

  const RemoteOptions& options_;

  mutable absl::Mutex mu_;
  SteadyCondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<CoordinatorLink> link_ ABSL_GUARDED_BY(mu_);
  std::set<Ballot*> ballots_ ABSL_GUARDED_BY(mu_);
  std::map<grpc::ClientContext*, const Ballot*> calls_ ABSL_GUARDED_BY(mu_);  // null if it belongs to no ballot
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_COORDINATOR_CALLS_H_
