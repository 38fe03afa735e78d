// Versions of planes: their messages, and which one mirrors take next.
#ifndef PARAMSHARD_SERVER_MIRRORS_PLANE_VERSIONS_H_
#define PARAMSHARD_SERVER_MIRRORS_PLANE_VERSIONS_H_

#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/shared_memory/publication_page.h"
#include "paramshard/v1/mirror.pb.h"
#include "server/base/steady_time.h"

namespace paramshard::server {

v1::PlaneVersion ToProto(const wire::PublishedVersion& version);
// INVALID_ARGUMENT
absl::StatusOr<wire::PublishedVersion> FromProto(const v1::PlaneVersion& version);

// Chooses the version of one model that all mirrors take next, so that all owners copy the same one.
//
// At first it is the present version. Owners copy it at once; where commits come fast an owner may have passed it, or
// a step may not wait for the copy. After such a miss the choice lies some commits ahead, so that every owner knows of
// it before its commit, and copies between that commit and the next step: one commit, then twice as many with each miss.
// An owner that waits in vain has no training: then it is the present version again. Not thread-safe.
class VersionChoice {
 public:
  static constexpr int kMostMisses = 7;
  static constexpr int64_t kMostAhead = int64_t{1} << (kMostMisses - 1);  // commits
  static constexpr absl::Duration kLeastWait = absl::Seconds(1);          // of an owner, for a version to come

  // Returns the choice. `present` is the version that was published last. An older one stays the choice while `is_busy`:
  // its image is sent, and there is no room for another one.
  wire::PublishedVersion Next(const wire::PublishedVersion& present,
                              absl::FunctionRef<bool(const wire::PublishedVersion&)> is_busy,
                              SteadyTime now = SteadyNow());

  // A mirror did not get a version. Ignored unless it is the present choice and can have been missed: the model has
  // passed it or is at it, or it was chosen kLeastWait ago if an owner has waited in vain. So no caller moves the choice
  // on before others could take it.
  void OnMissed(const wire::PublishedVersion& version, bool timed_out, const wire::PublishedVersion& present,
                SteadyTime now = SteadyNow());
  // A mirror has a version.
  void OnReceived(const wire::PublishedVersion& version);

 private:
  std::optional<wire::PublishedVersion> choice_;
  SteadyTime chosen_at_;
  bool missed_ = false;    // the choice
  bool received_ = false;  // likewise
  int misses_ = 0;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MIRRORS_PLANE_VERSIONS_H_
