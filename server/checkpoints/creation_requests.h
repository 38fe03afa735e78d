// Creations of models that wait until node 0 has chosen what they begin with.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_CREATION_REQUESTS_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_CREATION_REQUESTS_H_

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/steady_cond_var.h"
#include "server/models/model_store.h"
#include "server/terms/history.h"
#include "server/terms/restore_message.h"

namespace paramshard::server {

// Returns the error of waits and orders while the daemon drains.
inline absl::Status DrainError() { return absl::UnavailableError("restore: the daemon drains; try again later"); }

// A creation at another node sends a RestoreRequest to node 0 and waits here; node 0 remembers the requests that it
// cannot answer yet. Node 0 answers by an order to all daemons (Restores), or by a RestoreAnswer.
//
// Thread-safe. May call functions of its options with its mutex held.
class CreationRequests {
 public:
  struct Options {
    ModelStore* store = nullptr;                 // outlives this
    absl::Duration timeout = absl::Minutes(10);  // of the wait for node 0's answer
    const Clock* clock = &Clock::Steady();       // outlives this
    HistoryIdSource draw_id = RandomHistoryId;
    // At node 0: rolls all daemons back to a saved state, because another daemon waits to create a model that has been
    // trained here. Returns at once, and must not call back.
    std::function<void(const std::string& model, const absl::Status& why)> roll_back = [](auto&, auto&) {};
  };

  explicit CreationRequests(Options options) : options_(std::move(options)) {}

  // Ends all waits. Idempotent.
  void BeginDrain();
  // Lets waiting creations look at `is_settled` again.
  void SignalChanged();

  // At another node: waits for node 0's answer, or until `is_settled` returns true: no value then. Must not be called
  // with a lock of the store. `is_gone` returns true if no caller waits for the model any more. Neither blocks.
  // DEADLINE_EXCEEDED; ABORTED if the caller disconnected; UNAVAILABLE if node 0 is not reached or the daemon drains;
  // node 0's refusal.
  using Question = absl::FunctionRef<bool()>;
  absl::StatusOr<std::optional<RestoreAnswer>> Await(const std::string& model, Question is_settled, Question is_gone);
  void OnAnswer(const std::string& model, const RestoreAnswer& answer);
  void OnLeaderLost(const absl::Status& why);

  // At node 0: takes requests, and forgets those of a node that was lost.
  void OnRequest(const std::string& model, const RestoreRequest& request);
  void OnFollowerLost(int node);
  // Answers the creations of the model that wait elsewhere. OK: they begin with initial values, as this daemon has
  // done.
  void Answer(const std::string& model, const absl::Status& status);

 private:
  // Creations here of one model.
  struct Waiting {
    absl::uint128 request_id = 0;
    std::optional<SteadyTime> told = {};  // to node 0, the last time
    int callers = 0;
    std::optional<RestoreAnswer> answer = {};
  };
  using RequestKey = std::pair<std::string, int>;  // of a model, by a node

  absl::StatusOr<std::optional<RestoreAnswer>> Await(const std::string& model, Waiting& waiting, Question is_settled,
                                                     Question is_gone) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Repeats the request now and then: node 0 may have dropped it, or may have had no answer then.
  absl::Status TellRequest(const std::string& model, Waiting& waiting) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the answer without the request's id; no value if there is no answer yet.
  std::optional<RestoreAnswer> AnswerFor(const std::string& model) const;
  absl::Status Tell(const std::string& model, RestoreRequest request) const;
  void TellAnswer(const std::string& model, absl::uint128 request_id, RestoreAnswer answer) const;

  const Options options_;

  absl::Mutex mu_;
  SteadyCondVar changed_;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, Waiting, std::less<>> waiting_ ABSL_GUARDED_BY(mu_);  // by model
  std::map<RequestKey, absl::uint128> requests_ ABSL_GUARDED_BY(mu_);         // their ids
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_CREATION_REQUESTS_H_
