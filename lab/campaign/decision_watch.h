// Seeing from outside when a server has decided a commit.
#ifndef PARAMSHARD_LAB_CAMPAIGN_DECISION_WATCH_H_
#define PARAMSHARD_LAB_CAMPAIGN_DECISION_WATCH_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace paramshard::test {

// The word of a model's journal that publishes decisions, in the memory that a keeper holds. The time between a
// decision and the answer is too short to be hit by chance. Move-only.
class DecisionWatch {
 public:
  // NOT_FOUND when the keeper holds no journal of the model that was begun.
  static absl::StatusOr<DecisionWatch> Open(pid_t keeper, const std::string& model);
  DecisionWatch(DecisionWatch&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), size_bytes_(other.size_bytes_), word_(other.word_) {}
  ~DecisionWatch();

  // A word that changes with each decision.
  uint64_t word() const;
  // Returns true as soon as the word differs from `before`, false after `timeout`. Spins for a while, then takes short
  // naps.
  bool AwaitOther(uint64_t before, absl::Duration timeout) const;

 private:
  DecisionWatch(void* memory, size_t size_bytes) : memory_(memory), size_bytes_(size_bytes) {}

  void* memory_;
  size_t size_bytes_;
  int64_t word_ = 0;  // where it lies
};

}  // namespace paramshard::test

#endif  // PARAMSHARD_LAB_CAMPAIGN_DECISION_WATCH_H_
