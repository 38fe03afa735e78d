// gRPC service for mirrors: sends copies of planes to daemons on other nodes.
#ifndef PARAMSHARD_SERVER_EDGE_MIRROR_SERVICE_H_
#define PARAMSHARD_SERVER_EDGE_MIRROR_SERVICE_H_

#include <atomic>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "paramshard/v1/mirror.pb.h"
#include "server/base/steady_time.h"
#include "server/edge/guarded_service.h"
#include "server/mirrors/image_store.h"
#include "server/mirrors/plane_versions.h"
#include "server/models/model_store.h"

namespace paramshard::server {

// Thread-safe; the arguments outlive the server that the service is registered with.
class MirrorService final : public GuardedService {
 public:
  // Time after its last question for which a mirror is listed.
  static constexpr absl::Duration kListed = absl::Seconds(30);

  MirrorService(const ModelStore* store, ImageStore* images, Callers* callers, CallWorkers* workers,
                Callers::Strangers strangers);

  // Returns the last reports of mirrors that have asked lately.
  std::vector<v1::MirrorReport> Reports() const;

 private:
  absl::StatusOr<v1::AskVersionsResponse> AskVersions(const Call& call, const v1::AskVersionsRequest& request);
  v1::AskVersionsResponse NameVersions() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<v1::DescribeModelResponse> DescribeModel(const Call& call, const v1::DescribeModelRequest& request);
  absl::Status FetchPlanes(const Call& call, const v1::FetchPlanesRequest& request,
                           MessageWriter<v1::FetchPlanesResponse>* writer);
  absl::Status SendImage(const Call& call, const Model& model, const wire::PublishedVersion& version,
                         SteadyTime deadline, MessageWriter<v1::FetchPlanesResponse>* writer);

  void NoteReports(const v1::AskVersionsRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status NoteMissed(const v1::AskVersionsRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const ModelStore* const store_;
  ImageStore* const images_;

  struct Noted {
    v1::MirrorReport report;
    SteadyTime at;
  };
  std::atomic<int> waiting_ = 0;  // calls that wait for news
  mutable absl::Mutex mu_;
  std::map<std::string, VersionChoice> choices_ ABSL_GUARDED_BY(mu_);                  // by model
  std::map<std::pair<std::string, std::string>, Noted> reports_ ABSL_GUARDED_BY(mu_);  // by mirror and model
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_MIRROR_SERVICE_H_
