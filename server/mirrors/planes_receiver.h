// Receives the planes of one version from all daemons that own a part of them.
#ifndef PARAMSHARD_SERVER_MIRRORS_PLANES_RECEIVER_H_
#define PARAMSHARD_SERVER_MIRRORS_PLANES_RECEIVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/shared_memory/publication_page.h"
#include "server/base/steady_cond_var.h"
#include "server/base/steady_time.h"
#include "server/mirrors/mirrored_model.h"
#include "server/observe/metric_registry.h"

namespace paramshard::server {

// A daemon that owns ranks [first_rank, first_rank + ranks) of the shard group.
struct PlanesOwner {
  std::string address = {};  // in messages
  std::shared_ptr<grpc::Channel> channel = {};
  int first_rank = 0;
  int ranks = 0;
};

// One transfer at a time, on a thread for each owner, which end with it. Stop is thread-safe.
class PlanesReceiver {
 public:
  // How long an owner may wait for a version that is still to come.
  static constexpr absl::Duration kWait = absl::Seconds(2);
  // An owner that has not begun for longer is given up: beyond kWait. A busy owner may need seconds for a large copy.
  static constexpr absl::Duration kStall = absl::Seconds(30);

  // An owner that has begun may be late by `longest` in all; bytes that come earn time back. As owners judge mirrors.
  struct Pace {
    absl::Duration longest = absl::Seconds(10);
    int64_t bytes_per_second = 4 << 20;
  };
  PlanesReceiver() : PlanesReceiver(Pace()) {}
  // `metrics` outlives the receiver.
  explicit PlanesReceiver(Pace pace, MetricRegistry* metrics = &MetricRegistry::Unread())
      : pace_(pace), metrics_(*metrics) {}

  // Receives into the staging memory of `model`, which the caller has begun, and returns the whole version. It was named
  // at `named_at`, from which the metrics count. The first error ends the transfers of all owners: of FetchPlanes, with
  // the owner's name; DATA_LOSS what was received is damaged or not that version; UNAVAILABLE an owner is too slow, or
  // does not begin; CANCELLED.
  absl::StatusOr<wire::PublishedVersion> Receive(const std::vector<PlanesOwner>& owners,
                                                 const wire::PublishedVersion& wanted, const MirroredModel& model,
                                                 SteadyTime named_at = SteadyNow());

  // Ends a transfer in progress, and all later ones.
  void Stop();

 private:
  struct Part;

  // Runs on the thread of an owner.
  void ReceivePart(const wire::PublishedVersion& wanted, const MirroredModel& model, Part& part);
  std::string WhyLate(bool has_begun) const;
  // Waits until all parts have ended. Returns why it has cancelled them.
  absl::Status AwaitParts(std::vector<std::unique_ptr<Part>>& parts);

  const Pace pace_;
  MetricRegistry& metrics_;

  absl::Mutex mu_;
  SteadyCondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MIRRORS_PLANES_RECEIVER_H_
