// Receives the planes of one version from all daemons that own a part of them.
#ifndef PARAMSHARD_SERVER_MIRRORS_PLANES_RECEIVER_H_
#define PARAMSHARD_SERVER_MIRRORS_PLANES_RECEIVER_H_

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
#include "server/mirrors/mirrored_model.h"

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
  // A transfer without a byte for longer is given up: beyond kWait. A busy owner may need seconds for a large copy.
  static constexpr absl::Duration kStall = absl::Seconds(30);

  // Receives into the staging memory of `model`, which the caller has begun, and returns the whole version. The first
  // error ends the transfers of all owners: of FetchPlanes, with the owner's name; DATA_LOSS what was received is
  // damaged or not that version; DEADLINE_EXCEEDED an owner stands still; CANCELLED.
  absl::StatusOr<wire::PublishedVersion> Receive(const std::vector<PlanesOwner>& owners,
                                                 const wire::PublishedVersion& wanted, const MirroredModel& model);

  // Ends a transfer in progress, and all later ones.
  void Stop();

 private:
  struct Part;

  // Runs on the thread of an owner.
  void ReceivePart(const wire::PublishedVersion& wanted, const MirroredModel& model, Part& part);
  // Waits until all parts have ended. Returns why it has cancelled them.
  absl::Status AwaitParts(std::vector<std::unique_ptr<Part>>& parts);

  absl::Mutex mu_;
  SteadyCondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MIRRORS_PLANES_RECEIVER_H_
