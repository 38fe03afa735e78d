// Trainings on a world of kept servers, and moments of their steps at which something happens.
#ifndef PARAMSHARD_LAB_CAMPAIGN_MOMENTS_H_
#define PARAMSHARD_LAB_CAMPAIGN_MOMENTS_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lab/campaign/kept_server.h"
#include "tests/support/child_process.h"

namespace paramshard::test {

// A random part of it, below the whole.
absl::Duration UpTo(absl::Duration longest, std::mt19937_64& random);

// Returns OK if `holds`, else INTERNAL with the message `what`.
absl::Status Expect(bool holds, const std::string& what);

// Trains a model on the server to its end, while `disturb` happens; its hash.
absl::StatusOr<std::string> TrainOn(KeptServer& server, const std::string& model,
                                    absl::FunctionRef<absl::Status(std::vector<ChildProcess>&)> disturb);

// Moment of a fault.
enum class Moment {
  kInAStep,        // after one has begun
  kAfterDecision,  // and before the answer, or about then
};

// Waits until a trainer is at the commit. INTERNAL if none gets there.
absl::Status AwaitArrival(std::vector<ChildProcess>& trainers, uint32_t commit);

// Lets the trainers make this commit, too.
void AllowCommit(std::vector<ChildProcess>& trainers, uint32_t commit);

// Waits for all trainers to end. INTERNAL lists failed trainers, and the positions of trainers that have not ended.
absl::Status AwaitEnds(std::vector<ChildProcess>& trainers, absl::Duration timeout);

// Lets the trainers make the next commit, and waits for a moment of it in the daemon that is `watched`; of a daemon
// that has no journal of the model, because its memory was lost, for one after the step has begun. INTERNAL where the
// trainers do not get there.
absl::Status AwaitMoment(const KeptServer& server, const std::string& model, std::vector<ChildProcess>& trainers,
                         uint32_t commit, int watched, Moment moment, std::mt19937_64& random);

}  // namespace paramshard::test

#endif  // PARAMSHARD_LAB_CAMPAIGN_MOMENTS_H_
