// Stages of the commit that an epoch carries out, on each rank of this daemon.
#ifndef PARAMSHARD_SERVER_TRAINING_COMMIT_STAGES_H_
#define PARAMSHARD_SERVER_TRAINING_COMMIT_STAGES_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace paramshard::server {

// Step of a rank's push thread for a command.
enum class PushStep : uint8_t { kLand, kReduce, kDiscard, kSum, kVote, kApply, kShareAmaxes, kEncode };

// Result of a vote. kGivenUp: the epoch ends, and nothing more happens to the commit. kEncodes: amaxes are shared
// after all ranks have applied it, and every rank encodes.
enum class VoteVerdict : uint8_t { kGivenUp, kApplies, kEncodes };

// Every rank sums, one votes, every rank applies; where formats need amaxes of whole tensors one shares them and every
// rank encodes. Then the next commit begins.
class CommitStages {
 public:
  explicit CommitStages(int ranks) : stages_(ranks, Stage::kPending) {}

  // Returns the step that the rank may take now. `may_sum`: nothing holds back its sum. `stopped`: only a decided
  // commit goes on.
  std::optional<PushStep> Next(int rank, bool may_sum, bool stopped) const;
  void Begin(int rank, PushStep step);
  void FinishSum(int rank) { stages_[rank] = Stage::kSummed; }
  void FinishVote(VoteVerdict verdict);
  void FinishShareAmaxes() { amaxes_ = AmaxState::kShared; }
  // Returns true if the rank has nothing left to do: Finish follows.
  bool FinishApply(int rank);
  // Ends the commit on the rank. Returns true if all have ended it.
  bool Finish(int rank);

  // Returns true if the rank has not begun to sum.
  bool is_pending(int rank) const { return stages_[rank] == Stage::kPending; }
  // Returns the only rank that has not begun to sum, where all others have summed; -1 without one.
  int OnlyPending() const;
  // Returns true if the fate of the commit is open: it is voted on, or decided and not applied by all.
  bool is_open() const { return vote_ == VoteState::kVoting || vote_ == VoteState::kApplies; }

 private:
  // A rank goes through these. It is kDone where it has nothing left to do.
  enum class Stage : uint8_t { kPending, kSumming, kSummed, kApplying, kApplied, kEncoding, kDone };
  enum class VoteState : uint8_t { kNone, kVoting, kApplies, kGivenUp };
  enum class AmaxState : uint8_t { kUnneeded, kNeeded, kSharing, kShared };

  bool AreAllAt(Stage stage) const;

  std::vector<Stage> stages_;
  VoteState vote_ = VoteState::kNone;
  AmaxState amaxes_ = AmaxState::kUnneeded;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_COMMIT_STAGES_H_
