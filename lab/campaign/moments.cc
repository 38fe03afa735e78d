#include "lab/campaign/moments.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "kernels/base/polling.h"
#include "kernels/base/status_macros.h"
#include "lab/campaign/decision_watch.h"
#include "lab/campaign/world.h"

namespace paramshard::test {
namespace {

// Timeout with one commit of a training, in addition to kTimeout.
constexpr absl::Duration kCommitTimeout = absl::Seconds(20);

std::string Whereabouts(Board& board) {
  const uint32_t place = board.numbers[kPlace];
  return absl::StrCat("before commit ", board.numbers[kAtCommit].load(), ", of ", board.numbers[kMayCommit].load(),
                      ", at point ", place % kPointCount, " of ", place / kPointCount, " in epoch ",
                      board.numbers[kEpoch].load());
}

}  // namespace

absl::Duration UpTo(absl::Duration longest, std::mt19937_64& random) {
  return longest * (static_cast<double>(random() % 1000) / 1000);
}

absl::Status Expect(bool holds, const std::string& what) {
  return holds ? absl::OkStatus() : absl::InternalError(what);
}

absl::StatusOr<std::string> TrainOn(KeptServer& server, const std::string& model,
                                    absl::FunctionRef<absl::Status(std::vector<ChildProcess>&)> disturb) {
  std::vector<ChildProcess> trainers;
  for (int rank = 0; rank < server.ranks(); ++rank) trainers.push_back(server.StartTrainer(model, rank));
  RETURN_IF_ERROR(disturb(trainers));
  AllowCommit(trainers, static_cast<uint32_t>(server.commits()));
  RETURN_IF_ERROR(AwaitEnds(trainers, kTimeout + server.commits() * kCommitTimeout));
  return server.StateHash(model);
}

absl::Status AwaitEnds(std::vector<ChildProcess>& trainers, absl::Duration timeout) {
  const absl::Time latest = absl::Now() + timeout;
  std::vector<std::string> ends;
  std::map<std::string, std::vector<size_t>> places;
  // One that fails leaves the others waiting: all are asked.
  for (size_t rank = 0; rank < trainers.size(); ++rank) {
    const absl::Status end = trainers[rank].Await(std::max(absl::ZeroDuration(), latest - absl::Now()));
    if (absl::IsDeadlineExceeded(end) && trainers[rank].pid() > 0) {
      places[Whereabouts(trainers[rank].board())].push_back(rank);
    } else if (!end.ok()) {
      ends.push_back(absl::StrCat("rank ", rank, " ended with ", end.ToString()));
    }
  }
  for (const auto& [place, ranks] : places) {
    ends.push_back(absl::StrCat(place, " ranks ", absl::StrJoin(ranks, ",")));
  }
  return Expect(ends.empty(), absl::StrCat("trainers have not finished: ", absl::StrJoin(ends, "; ")));
}

void AllowCommit(std::vector<ChildProcess>& trainers, uint32_t commit) {
  for (ChildProcess& trainer : trainers) Reach(trainer.board(), kMayCommit, commit);
}

absl::Status AwaitArrival(std::vector<ChildProcess>& trainers, uint32_t commit) {
  // One trainer is enough: another one, whose last answer was lost with its server, waits for this one to come again.
  const auto is_there = [&]() -> absl::StatusOr<bool> {
    return std::any_of(trainers.begin(), trainers.end(),
                       [&](ChildProcess& trainer) { return trainer.board().numbers[kAtCommit] >= commit; });
  };
  ASSIGN_OR_RETURN(const bool there, Poll({.timeout = kTimeout}, is_there));
  if (there) return absl::OkStatus();
  RETURN_IF_ERROR(AwaitEnds(trainers, absl::ZeroDuration()));
  return absl::InternalError("all trainers have ended");
}

absl::Status AwaitMoment(const KeptServer& server, const std::string& model, std::vector<ChildProcess>& trainers,
                         uint32_t commit, int watched, Moment moment, std::mt19937_64& random) {
  const CampaignOptions& options = server.options();
  RETURN_IF_ERROR(AwaitArrival(trainers, commit));
  const absl::StatusOr<DecisionWatch> watch = moment == Moment::kAfterDecision
                                                  ? DecisionWatch::Open(server.keeper(watched), model)
                                                  : absl::NotFoundError("not wanted");
  if (absl::IsNotFound(watch.status())) {
    AllowCommit(trainers, commit);
    // Waits for no event, to hit any time of a step.
    absl::SleepFor(UpTo(options.server_kill_within, random));
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(watch.status());
  const uint64_t before = watch->word();
  AllowCommit(trainers, commit);
  RETURN_IF_ERROR(Expect(watch->AwaitOther(before, kTimeout), "timed out waiting for a decision"));
  // Too short for a sleep.
  const absl::Time end = absl::Now() + UpTo(options.decided_kill_within, random);
  while (absl::Now() < end) continue;
  return absl::OkStatus();
}

}  // namespace paramshard::test
