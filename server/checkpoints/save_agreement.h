// Agreement of a world's daemons about one save: node 0 leads it, the others follow.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_SAVE_AGREEMENT_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_SAVE_AGREEMENT_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/steady_cond_var.h"
#include "server/checkpoints/staging_directory.h"
#include "server/terms/cluster.h"
#include "server/terms/save_message.h"

namespace paramshard::server {

// One daemon's part in a save whose order has been sent or taken; save_message.h has the messages. Thread-safe.
class SaveAgreement {
 public:
  enum class Role : uint8_t {
    kAlone,     // node 0 saves without the others
    kLeader,    // node 0
    kFollower,  // another node
  };

  struct Options {
    Role role = Role::kLeader;
    Cluster* cluster = nullptr;  // outlives the agreement
    std::string model;
    absl::uint128 id = 0;  // of the save
    absl::Duration timeout = absl::InfiniteDuration();
    SteadyTime deadline = kNever;
    const Clock* clock = &Clock::Steady();  // outlives the agreement
  };

  explicit SaveAgreement(Options options) : options_(std::move(options)) {}

  absl::uint128 id() const { return options_.id; }
  Role role() const { return options_.role; }
  SteadyTime deadline() const { return options_.deadline; }

  // Returns why the save must end: the first failure, or DEADLINE_EXCEEDED. Does not block.
  absl::Status CheckContinue() const;
  // Node 0 permits the others to write: the staging directory exists. Others wait for the permission. Errors of
  // CheckContinue.
  absl::Status AgreeToWrite();
  // Waits, at node 0, for the parts of all other daemons. Errors of CheckContinue, naming the nodes that are late.
  absl::StatusOr<std::vector<PartReport>> AwaitParts();

  // Takes a message about this save. Ignores repetitions.
  void OnPermission();
  void OnPart(const SavePart& part);
  // Ends waits with this error, and the save soon; the first error holds.
  void Fail(const absl::Status& why);

 private:
  // Waits until `is_there`, which is called with the mutex held, returns true.
  absl::Status Await(absl::FunctionRef<bool()> is_there);
  void SetFailure(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status LateError(absl::string_view what) const;

  const Options options_;
  std::atomic<bool> failed_ = false;

  mutable absl::Mutex mu_;
  SteadyCondVar changed_;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  bool is_permitted_ ABSL_GUARDED_BY(mu_) = false;
  std::map<int, SavePart> parts_ ABSL_GUARDED_BY(mu_);  // by node
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_SAVE_AGREEMENT_H_
