// A mirror: holds planes of a training's models on another node, for the readers beside it.
#ifndef PARAMSHARD_SERVER_MIRRORS_MIRROR_H_
#define PARAMSHARD_SERVER_MIRRORS_MIRROR_H_

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "paramshard/v1/mirror.pb.h"
#include "server/base/steady_cond_var.h"
#include "server/mirrors/model_follower.h"
#include "server/mirrors/source_calls.h"
#include "server/state/published_planes.h"

namespace paramshard::server {

// Asks node 0 again and again which version of each of its models to hold; a follower for each model receives it. A
// training that does not answer leaves the mirror what it has. Thread-safe.
class Mirror {
 public:
  struct Options {
    std::string name;  // of this mirror, for people
    SourceCalls::Options source;
    std::vector<ComputeDevice*> devices;  // for the planes that readers map; outlive the mirror
    bool activates = true;                // a version as soon as it is whole; false: when Activate is called
    Publication::Options publication = {};
    int64_t memory_limit_bytes = 0;       // of each model; 0: none
    LeftReaders* left_readers = nullptr;  // see ModelFollower
  };
  static absl::StatusOr<std::unique_ptr<Mirror>> Start(Options options);
  ~Mirror() { Stop(); }

  // Ends transfers in progress, and tells readers that the mirror ends. Idempotent.
  void Stop();

  // Returns a model for a reader. NOT_FOUND names the models that are here, or why node 0 does not answer.
  absl::StatusOr<PublishedPlanes> Find(absl::string_view model) const;
  std::vector<PublishedPlanes> List() const;
  // Activates the staged version of a model with this commit number. NOT_FOUND; errors of MirroredModel::Activate.
  absl::Status Activate(absl::string_view model, int64_t commit_number);
  // Returns a report for each model; without models one that says if node 0 answers.
  std::vector<v1::MirrorReport> Reports() const;

 private:
  explicit Mirror(Options options) : options_(std::move(options)), source_(options_.source) {}
  void Run();
  // Asks, and hands out the answer.
  absl::Status Ask();
  void HandOut(const v1::AskVersionsResponse& response);
  // Waits for the time to ask again.
  bool AwaitTurn(SteadyTime turn);
  absl::StatusOr<std::shared_ptr<ModelFollower>> FindFollower(absl::string_view model) const;

  const Options options_;
  SourceCalls source_;

  mutable absl::Mutex mu_;
  SteadyCondVar changed_;
  std::map<std::string, std::shared_ptr<ModelFollower>, std::less<>> followers_ ABSL_GUARDED_BY(mu_);
  absl::Status answered_ ABSL_GUARDED_BY(mu_);  // of node 0
  std::string last_answer_ ABSL_GUARDED_BY(mu_);
  SteadyTime changed_at_ ABSL_GUARDED_BY(mu_);  // of the answer
  bool hurries_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MIRRORS_MIRROR_H_
