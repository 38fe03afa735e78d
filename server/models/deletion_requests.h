// Requests to delete models that were carried out: a client that repeats one gets the same answer.
#ifndef PARAMSHARD_SERVER_MODELS_DELETION_REQUESTS_H_
#define PARAMSHARD_SERVER_MODELS_DELETION_REQUESTS_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace paramshard::server {

// An empty id is never remembered. Not thread-safe.
class DeletionRequests {
 public:
  // Returns true if a request with that id has deleted the model. INVALID_ARGUMENT if it has deleted another one.
  absl::StatusOr<bool> Find(const std::string& model, const std::string& request_id) const {
    const auto found = models_.find(request_id);
    if (request_id.empty() || found == models_.end()) return false;
    if (found->second == model) return true;
    return absl::InvalidArgumentError(
        absl::StrCat("delete model ", model, ": want a new request id, got the one that deleted ", found->second));
  }

  void Add(const std::string& model, const std::string& request_id) {
    if (request_id.empty()) return;
    if (models_.size() >= kMaxRequests) models_.clear();
    models_[request_id] = model;
  }

 private:
  // Enough for every client that could still repeat one.
  static constexpr size_t kMaxRequests = 1024;

  std::map<std::string, std::string> models_;  // by request id
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MODELS_DELETION_REQUESTS_H_
