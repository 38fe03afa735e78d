// Turns to create models, and the callers that wait for them.
#ifndef PARAMSHARD_SERVER_MODELS_CREATION_TURNS_H_
#define PARAMSHARD_SERVER_MODELS_CREATION_TURNS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/model/model_spec.h"
#include "server/base/steady_cond_var.h"

namespace paramshard::server {

// One creation at a time: free memory is counted before memory is taken. A creation may last, for it may wait for other
// daemons: a caller that waits for its turn checks now and then whether its client still waits for the answer. Memory
// of lost models is freed meanwhile, except of the model that is being made anew.
//
//   ASSIGN_OR_RETURN(const CreationTurns::Turn turn, turns.Take(spec, is_gone));
//
// Thread-safe.
class CreationTurns {
 public:
  // Returns true if no client waits for a creation's answer any more. It is called with a lock held: it must neither
  // block nor take a turn.
  using IsGone = absl::FunctionRef<bool()>;
  static bool IsNeverGone() { return false; }

  // A turn to create a model, or to free what is left of one, until its destruction. Move-only.
  class Turn {
   public:
    Turn(CreationTurns* turns, std::optional<std::string> freed) : turns_(turns), freed_(std::move(freed)) {}
    Turn(Turn&& other) noexcept : turns_(std::exchange(other.turns_, nullptr)), freed_(std::move(other.freed_)) {}
    ~Turn() {
      if (turns_ != nullptr) turns_->GiveBack(freed_);
    }

   private:
    CreationTurns* turns_;
    std::optional<std::string> freed_;  // null for a creation
  };

  // Waits until no model is being created, and nothing is being freed under that name. ABORTED if the caller
  // disconnected: nothing is begun for it.
  absl::StatusOr<Turn> Take(const ModelSpec& spec, IsGone is_gone);
  // Returns true if another caller waits for the turn to create the model that is being created: same name, same spec.
  bool IsAwaited() const;

  // Waits while another call frees the same name. UNAVAILABLE if a model of that name is being created.
  absl::StatusOr<Turn> TakeToFree(const std::string& name);

 private:
  struct Creation {
    std::string name;
    uint64_t fingerprint = 0;  // of the spec
  };

  // Returns true if a creation of that name has to wait.
  bool IsHeldUp(absl::string_view name) const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return creating_.has_value() || freed_.contains(name);
  }
  void GiveBack(const std::optional<std::string>& freed);

  mutable absl::Mutex mu_;
  SteadyCondVar changed_;
  std::optional<Creation> creating_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, int> waiting_ ABSL_GUARDED_BY(mu_);           // how many, by fingerprint
  std::set<std::string, std::less<>> freed_ ABSL_GUARDED_BY(mu_);  // names
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MODELS_CREATION_TURNS_H_
