// A world of daemons with keepers, whose servers are killed.
#ifndef PARAMSHARD_LAB_CAMPAIGN_KEPT_SERVER_H_
#define PARAMSHARD_LAB_CAMPAIGN_KEPT_SERVER_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "lab/campaign/campaign.h"
#include "tests/faults/training.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"

namespace paramshard::test {

// Numbers of a trainer's board: the commit before which it stands, and the last commit that it may make. A trainer with
// the answer to the very last commit leaves, and a rank whose answer died with the server would wait for it.
inline constexpr int kAtCommit = 0;
inline constexpr int kMayCommit = 1;
// The last answered commit; the trainer's place in its epoch (PlaceOf); that epoch; and the last epoch whose end it was
// told, with the low bits of the wall clock's milliseconds then.
inline constexpr int kAnswered = 2;
inline constexpr int kPlace = 3;
inline constexpr int kEpoch = 4;
inline constexpr int kEndedEpoch = 5;
inline constexpr int kEndedAtMs = 6;
// Greater where a trainer gets to later.
inline uint32_t PlaceOf(int64_t commit, Point point) {
  return static_cast<uint32_t>(commit) * kPointCount + static_cast<uint32_t>(point);
}

// Writes the stacks of a process to a file, if there is gdb.
void KeepStacks(pid_t process, const std::string& file);

class KeptServer {
 public:
  // The daemons: one, or several that each hold a replica, or share one model. Elastic daemons hold replicas and train
  // to the same bytes for any set of active daemons, which flags of node 0 have to permit.
  enum class Shape { kOneDaemon, kReplicas, kShards, kElastic };
  // One daemon of the options' devices, or one for each of them.
  static absl::StatusOr<KeptServer> Start(const CampaignOptions& options, Shape shape);
  // Settings of a daemon besides its number and the number of daemons.
  struct Site {
    std::vector<std::string> flags;
    std::vector<std::string> devices = {"cpu:0"};
    Surroundings surroundings = {};
    std::string log = {};  // the file that it writes its log to; empty: one that ends with this object
  };
  struct Spec {
    Shape shape;
    std::vector<Site> sites;  // of one daemon each
    int64_t commits;          // of a training
    // Training::restart_timeout. Zero: trainers see each server that is away, and come again by themselves.
    absl::Duration restart_timeout = absl::ZeroDuration();
  };
  // The error for a daemon that does not start, here and below, quotes the end of its log.
  static absl::StatusOr<KeptServer> Start(const CampaignOptions& options, Spec spec);

  int daemons() const { return static_cast<int>(daemons_.size()); }
  int ranks() const { return static_cast<int>(daemon_of_rank_.size()); }
  int64_t commits() const { return spec_.commits; }
  const CampaignOptions& options() const { return options_; }
  // The running server's.
  pid_t server(int daemon) const { return daemons_[daemon].server; }
  const Site& site(int daemon) const { return daemons_[daemon].site; }
  pid_t keeper(int daemon) const { return daemons_[daemon].keeper->pid(); }
  Training TrainingOf(const std::string& model, int rank) const;
  // Starts a trainer that comes again when its epoch or its server ends. `answered`: the last commit that earlier
  // trainers of this rank got an answer to. The trainer fails if such a commit is made again.
  ChildProcess StartTrainer(const std::string& model, int rank, int64_t answered = 0) const;

  // Ends the servers of these daemons, then `followers.size()` successors of each, this long after their processes
  // began, and waits for the next servers. `signals`: for the servers, and for their successors.
  absl::Status Kill(absl::Span<const int> daemons, absl::Span<const absl::Duration> followers,
                    absl::Span<const int> signals);
  // The first half of Kill(): ends the servers that run or, if these were ended, the next servers, this long after
  // their processes began. AwaitNext() is the second half.
  absl::Status End(absl::Span<const int> daemons, absl::Duration after, int signal);
  // Ends the daemon, its keeper with it, so that nothing of its part is left, and starts it again, then as many that
  // follow, so long after they were started; and waits for the last one.
  absl::Status Lose(int daemon, absl::Span<const absl::Duration> followers);
  // The parts of that. Return is the last two.
  absl::Status Leave(int daemon);
  absl::Status Return(int daemon);
  absl::Status Spawn(int daemon);
  absl::Status AwaitServing(int daemon);
  // Restarts a daemon like an operator: SIGTERM, and a new daemon when it has ended.
  absl::Status Restart(int daemon);
  // Waits for servers of these daemons that follow those that have ended.
  absl::Status AwaitNext(absl::Span<const int> daemons);
  // Returns the daemons that take part in the model's current epoch, as this daemon says; empty without an epoch.
  absl::StatusOr<std::set<int>> ActiveNodes(int daemon, const std::string& model) const;
  // Returns the state's hash, of all daemons.
  absl::StatusOr<std::string> StateHash(const std::string& model) const;
  // Steps of a model that were decided and not finished, and that servers have finished that followed, as their logs
  // say; and how many of their bands were torn. INTERNAL where one does not tell.
  struct FinishedSteps {
    int64_t steps = 0;
    int64_t torn_bands = 0;
  };
  absl::StatusOr<FinishedSteps> StepsFinished(const std::string& model) const;

 private:
  struct Daemon {
    TemporaryDirectory directory;
    Site site;
    std::optional<DaemonProcess> keeper = std::nullopt;
    pid_t server = -1;
    pid_t ended = -1;   // the last server that End has ended
    int64_t kills = 0;  // calls of Kill that were about it
  };

  KeptServer(const CampaignOptions& options, Spec spec) : options_(options), spec_(std::move(spec)) {}
  absl::Status Add(Site site);
  absl::StatusOr<pid_t> ServerPid(const Daemon& daemon) const;
  absl::Status AwaitNext(Daemon& daemon) const;

  CampaignOptions options_;
  Spec spec_;
  std::vector<Daemon> daemons_;
  std::vector<int> daemon_of_rank_;
};

}  // namespace paramshard::test

#endif  // PARAMSHARD_LAB_CAMPAIGN_KEPT_SERVER_H_
