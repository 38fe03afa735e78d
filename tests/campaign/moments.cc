#include "tests/campaign/moments.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "kernels/base/polling.h"
#include "kernels/base/status_macros.h"
#include "tests/campaign/decision_watch.h"
#include "tests/campaign/world.h"

namespace paramshard::test {

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
  for (ChildProcess& trainer : trainers) Reach(trainer.board(), kMayCommit, static_cast<uint32_t>(server.commits()));
  // One that fails leaves the other waiting: both are asked.
  std::vector<std::string> ends;
  bool all_ok = true;
  for (ChildProcess& trainer : trainers) {
    const absl::Status end = trainer.Await(kPatience);
    all_ok = all_ok && end.ok();
    ends.push_back(end.ToString());
  }
  if (!all_ok) return absl::InternalError(absl::StrCat("trainers ended with ", absl::StrJoin(ends, " and ")));
  return server.StateHash(model);
}

absl::Status AwaitArrival(std::vector<ChildProcess>& trainers, uint32_t commit) {
  // One of them: another one, whose last answer has died with its server, waits for this one to come again.
  const auto is_there = [&]() -> absl::StatusOr<bool> {
    return std::any_of(trainers.begin(), trainers.end(),
                       [&](ChildProcess& trainer) { return trainer.board().numbers[kAtCommit] >= commit; });
  };
  ASSIGN_OR_RETURN(const bool there, Poll({.timeout = kPatience}, is_there));
  if (!there) {
    std::vector<std::string> ends;
    for (ChildProcess& trainer : trainers) ends.push_back(trainer.Await(absl::ZeroDuration()).ToString());
    return absl::InternalError(absl::StrCat("trainers that move expected, they are at ", absl::StrJoin(ends, " and ")));
  }
  return absl::OkStatus();
}

absl::Status AwaitMoment(const KeptServer& server, const std::string& model, std::vector<ChildProcess>& trainers,
                         uint32_t commit, int watched, Moment moment, std::mt19937_64& random) {
  const CampaignOptions& options = server.options();
  RETURN_IF_ERROR(AwaitArrival(trainers, commit));
  const auto let_go = [&] {
    for (ChildProcess& trainer : trainers) Reach(trainer.board(), kMayCommit, commit);
  };
  const absl::StatusOr<DecisionWatch> watch = moment == Moment::kAfterDecision
                                                  ? DecisionWatch::Open(server.keeper(watched), model)
                                                  : absl::NotFoundError("not wanted");
  if (absl::IsNotFound(watch.status())) {
    let_go();
    // Nothing is waited for: any time of a step is to be hit.
    absl::SleepFor(UpTo(options.server_kill_within, random));
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(watch.status());
  const uint64_t before = watch->word();
  let_go();
  RETURN_IF_ERROR(Expect(watch->AwaitOther(before, kPatience), "a decision expected"));
  // Too short for a sleep.
  const absl::Time end = absl::Now() + UpTo(options.decided_kill_within, random);
  while (absl::Now() < end) continue;
  return absl::OkStatus();
}

}  // namespace paramshard::test
