// Whose certificates are let in no more, though they are still valid.
#ifndef PARAMSHARD_SERVER_TRANSPORT_DENY_LIST_H_
#define PARAMSHARD_SERVER_TRANSPORT_DENY_LIST_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/base/clock.h"
#include "server/log/log_throttle.h"

namespace paramshard::server {

// A file with a URI in each line, in which `*` stands for any characters; what follows `#` at the beginning of a line
// is a comment. It is looked at again every two seconds, when somebody asks. While it cannot be read what it said last
// holds, and the log says so. Thread-safe.
class DenyList {
 public:
  // FAILED_PRECONDITION names the flag, the file and what is expected.
  static absl::StatusOr<std::shared_ptr<DenyList>> Load(const std::string& path, const Clock& clock = Clock::Steady());

  bool Names(absl::string_view uri);

 private:
  DenyList(std::string path, const Clock& clock, std::vector<std::string> patterns)
      : path_(std::move(path)), clock_(clock), patterns_(std::move(patterns)), read_at_(clock.Now()) {}

  void ReadAgain() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string path_;
  const Clock& clock_;
  ThrottledLog log_;
  absl::Mutex mu_;
  std::vector<std::string> patterns_ ABSL_GUARDED_BY(mu_);
  SteadyTime read_at_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRANSPORT_DENY_LIST_H_
