// List of certificates that are rejected although they are still valid.
#ifndef PARAMSHARD_SERVER_EDGE_DENY_LIST_H_
#define PARAMSHARD_SERVER_EDGE_DENY_LIST_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace paramshard::server {

// A file with a URI in each line, in which `*` stands for any characters; lines that begin with `#` are comments. A
// thread reads it again every two seconds, so that callers, which may hold locks, never wait for a disk. While the file
// cannot be read, the previous list applies, and a warning is logged. Thread-safe.
class DenyList {
 public:
  struct Options {
    absl::Duration interval = absl::Seconds(2);
    // Reads the whole file; null: from the disk.
    std::function<absl::StatusOr<std::string>(const std::string& path)> read = nullptr;
  };
  // FAILED_PRECONDITION the file cannot be read; RESOURCE_EXHAUSTED no thread.
  static absl::StatusOr<std::shared_ptr<DenyList>> Load(const std::string& path, Options options);
  static absl::StatusOr<std::shared_ptr<DenyList>> Load(const std::string& path) { return Load(path, Options()); }
  // Does not wait for a read that hangs: the thread ends when the read does.
  ~DenyList();

  bool Names(absl::string_view uri) const;

 private:
  // State of the list and its thread, either of which may end first.
  struct Shared;
  explicit DenyList(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  static void ReadAgainAndAgain(Shared& shared);

  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_DENY_LIST_H_
