// A daemon with a keeper, whose server is killed.
#ifndef PARAMSHARD_TESTS_CAMPAIGN_KEPT_SERVER_H_
#define PARAMSHARD_TESTS_CAMPAIGN_KEPT_SERVER_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "tests/campaign/campaign.h"
#include "tests/faults/training.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"

namespace paramshard::test {

// Of a trainer's board: the last commit that it has begun, the last that it has sent, and whether it may begin its last
// one. Who has that one's answer is gone, and another rank whose answer died with the server would wait for it.
inline constexpr int kBegunCommit = 0;
inline constexpr int kSentCommit = 1;
inline constexpr int kMayEnd = 2;

class KeptServer {
 public:
  static absl::StatusOr<KeptServer> Start(const CampaignOptions& options);

  int ranks() const { return options_.ranks(); }
  Training TrainingOf(const std::string& model, int rank) const;
  // A trainer that comes again when the server ends under it. An answered commit that is made again is its error.
  ChildProcess StartTrainer(const std::string& model, int rank) const;

  // Kills the server, then as many that follow it, each so long after its process began, and waits for the next one.
  absl::Status Kill(absl::Span<const absl::Duration> followers);
  absl::StatusOr<std::string> StateHash(const std::string& model) const;
  // Steps that were decided and not finished, and that servers have finished that followed.
  absl::StatusOr<int64_t> StepsFinished() const;

 private:
  KeptServer(const CampaignOptions& options, TemporaryDirectory directory, DaemonProcess daemon);
  absl::StatusOr<pid_t> ServerPid() const;
  // The keeper's child, serving or not; another one than `before`.
  absl::StatusOr<pid_t> AwaitChild(pid_t before) const;

  CampaignOptions options_;
  TemporaryDirectory directory_;
  DaemonProcess daemon_;
  pid_t server_ = -1;
};

}  // namespace paramshard::test

#endif  // PARAMSHARD_TESTS_CAMPAIGN_KEPT_SERVER_H_
