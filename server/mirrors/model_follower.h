// Keeps one model of a mirror at the version that node 0 names.
#ifndef PARAMSHARD_SERVER_MIRRORS_MODEL_FOLLOWER_H_
#define PARAMSHARD_SERVER_MIRRORS_MODEL_FOLLOWER_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <grpcpp/channel.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/shared_memory/publication_page.h"
#include "paramshard/v1/mirror.pb.h"
#include "server/base/steady_cond_var.h"
#include "server/base/steady_time.h"
#include "server/mirrors/mirrored_model.h"
#include "server/mirrors/planes_receiver.h"
#include "server/mirrors/source_calls.h"
#include "server/models/left_readers.h"

namespace paramshard::server {

// Returns an error as reports have it: UTF-8 of at most 1 KiB. Node 0 rejects longer and other text, and a peer's message
// may be anything.
std::string ErrorText(const absl::Status& error);

// Receives a version, activates it (unless people do), and goes on with the newest one that was named meanwhile. One
// thread. Thread-safe.
class ModelFollower {
 public:
  struct Options {
    std::string model;
    std::string mirror;                   // its name, in reports
    SourceCalls* source = nullptr;        // outlives the follower
    std::vector<ComputeDevice*> devices;  // likewise
    bool activates = true;                // a version as soon as it is whole
    Publication::Options publication = {};
    int64_t memory_limit_bytes = 0;           // of both copies of the model; 0: none
    LeftReaders* left_readers = nullptr;      // outlives the follower; null: nobody watches readers of what is gone
    std::function<void()> on_missed = [] {};  // called when TakeMissed is worth a question to node 0 at once
  };
  static absl::StatusOr<std::unique_ptr<ModelFollower>> Start(Options options);
  // Ends a transfer in progress, and the thread.
  ~ModelFollower();

  // The version to hold.
  void Follow(const v1::AskVersionsResponse::Named& named);
  // Returns a named version that was not received, once.
  std::optional<v1::AskVersionsRequest::Missed> TakeMissed();
  // The model is gone; readers are told why, and watched until they have let go of its memory.
  void End(absl::string_view why);

  // Returns null before node 0 has described the model.
  std::shared_ptr<MirroredModel> model() const;
  // MirroredModel::Activate. A staged version that is older than the commit is given up: the next one is received.
  absl::Status Activate(int64_t commit_number);
  v1::MirrorReport Report() const;

 private:
  struct Target {
    wire::PublishedVersion version;
    SteadyTime named_at;  // first
    uint64_t spec_fingerprint = 0;
    uint64_t layout_fingerprint = 0;
  };

  explicit ModelFollower(Options options) : options_(std::move(options)), receiver_({}, options_.publication.metrics) {}
  void Run();
  // Waits for a version to receive; nothing: stopped.
  std::optional<Target> AwaitDue();
  // Returns the version to receive now.
  std::optional<Target> Due() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  absl::Status Receive(const Target& target);
  // Learns the owners of the model, and makes room for it, unless that is done.
  absl::Status Open(const Target& target);
  absl::Status MakeRoom(const v1::DescribeModelResponse& described);
  void Note(const Target& target, const absl::Status& status);

  const Options options_;
  PlanesReceiver receiver_;
  std::vector<PlanesOwner> owners_;  // used by the thread only; empty: to be learnt

  mutable absl::Mutex mu_;
  SteadyCondVar changed_;
  std::shared_ptr<MirroredModel> model_ ABSL_GUARDED_BY(mu_);
  std::optional<Target> wanted_ ABSL_GUARDED_BY(mu_);
  std::optional<v1::AskVersionsRequest::Missed> missed_ ABSL_GUARDED_BY(mu_);
  bool asks_ ABSL_GUARDED_BY(mu_) = false;  // after a miss, until node 0 has named a version again
  std::string last_error_ ABSL_GUARDED_BY(mu_);
  int misses_ ABSL_GUARDED_BY(mu_) = 0;  // since the last version
  SteadyTime retry_at_ ABSL_GUARDED_BY(mu_);
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MIRRORS_MODEL_FOLLOWER_H_
