// Log of a model's commits: the last answer, and the client states that trainers sent with it.
#ifndef PARAMSHARD_SERVER_TERMS_COMMIT_LOG_H_
#define PARAMSHARD_SERVER_TERMS_COMMIT_LOG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace paramshard::server {

// Steps and commit numbers start below this, so that they count up without overflow.
inline constexpr int64_t kNumberLimit = int64_t{1} << 62;

// Answer to a commit, the same for all ranks.
struct CommitAnswer {
  int64_t commit_number = 0;
  int64_t version = 0;
  bool skipped = false;      // a gradient was not finite: nothing was applied
  double gradient_norm = 0;  // after unscaling, before clipping
  int64_t non_finite_count = 0;

  friend bool operator==(const CommitAnswer&, const CommitAnswer&) = default;
};

// Client states that the ranks of another node (PreviousNode) have sent with a commit, in the node's order.
struct PreviousStates {
  int node = 0;
  std::vector<std::string> client_states;
};

// Thread-safe. Ranks are the daemon's own, from 0.
class CommitLog {
 public:
  struct Numbers {
    int64_t commit_number = 0;  // answered, applied or skipped
    int64_t version = 0;        // applied
    int64_t skipped = 0;
  };

  // Content of a log between two commits.
  struct State {
    Numbers numbers;
    std::optional<CommitAnswer> last_answer = {};  // unset before the first commit, and after an import
    std::vector<std::string> client_states = {};   // by rank; missing: the rank has sent none
    std::optional<PreviousStates> previous = {};   // unset if not known
    std::string reader_data = {};                  // what the trainers gave to readers with the last commit
  };

  explicit CommitLog(int ranks) : client_states_(ranks) {}

  // Returns a consistent copy, as one commit has left it.
  State state() const;
  Numbers numbers() const;
  std::optional<CommitAnswer> last_answer() const;
  std::string client_state(int rank) const;
  std::string reader_data() const;
  // The node of State::previous, if known.
  std::optional<int> previous_node() const;

  // Answers the next commit.
  CommitAnswer Answer(bool applied, double gradient_norm, int64_t non_finite_count,
                      std::vector<std::string> client_states, std::optional<PreviousStates> previous = std::nullopt,
                      std::string reader_data = {});
  // Goes on from another state.
  void Restore(State state);

 private:
  mutable absl::Mutex mu_;
  Numbers numbers_ ABSL_GUARDED_BY(mu_);
  std::optional<CommitAnswer> last_answer_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> client_states_ ABSL_GUARDED_BY(mu_);
  std::optional<PreviousStates> previous_ ABSL_GUARDED_BY(mu_);
  std::string reader_data_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TERMS_COMMIT_LOG_H_
