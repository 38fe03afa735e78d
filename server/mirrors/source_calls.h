// A mirror's calls to the daemons of a training.
#ifndef PARAMSHARD_SERVER_MIRRORS_SOURCE_CALLS_H_
#define PARAMSHARD_SERVER_MIRRORS_SOURCE_CALLS_H_

#include <functional>
#include <memory>
#include <set>
#include <string>

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "paramshard/v1/mirror.pb.h"

namespace paramshard::server {

// Short calls to node 0, with a deadline, and channels to the other daemons. Thread-safe.
class SourceCalls {
 public:
  struct Options {
    std::string address;  // of node 0's --listen
    std::function<std::shared_ptr<grpc::Channel>(const std::string& address)> open;
    // Adds advice to an error of a connection.
    std::function<absl::Status(const absl::Status&)> explain = [](const absl::Status& status) { return status; };
  };
  explicit SourceCalls(Options options) : options_(std::move(options)) {}

  // UNAVAILABLE node 0 is not reached; CANCELLED after Stop; errors of the calls.
  absl::StatusOr<v1::AskVersionsResponse> AskVersions(const v1::AskVersionsRequest& request);
  absl::StatusOr<v1::DescribeModelResponse> DescribeModel(const std::string& model);

  // Returns a channel to an owner; the empty address is node 0.
  std::shared_ptr<grpc::Channel> Open(const std::string& address);
  const std::string& address() const { return options_.address; }

  // Ends calls in progress, and all later ones.
  void Stop();

 private:
  std::shared_ptr<grpc::Channel> Channel();
  template <typename Rpc>
  absl::Status Call(Rpc rpc);

  const Options options_;
  absl::Mutex mu_;
  std::shared_ptr<grpc::Channel> channel_ ABSL_GUARDED_BY(mu_);
  std::set<grpc::ClientContext*> contexts_ ABSL_GUARDED_BY(mu_);  // of calls in progress
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MIRRORS_SOURCE_CALLS_H_
