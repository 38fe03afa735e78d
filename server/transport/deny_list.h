// Whose certificates are let in no more, though they are still valid.
#ifndef PARAMSHARD_SERVER_TRANSPORT_DENY_LIST_H_
#define PARAMSHARD_SERVER_TRANSPORT_DENY_LIST_H_

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

// A file with a URI in each line, in which `*` stands for any characters; what follows `#` at the beginning of a line
// is a comment. A thread reads it again every two seconds: whoever asks, maybe under a lock, waits for no disk. While
// it cannot be read what it said last holds, and the log says so. Thread-safe.
class DenyList {
 public:
  struct Options {
    absl::Duration interval = absl::Seconds(2);
    // All of the file; null: from the disk.
    std::function<absl::StatusOr<std::string>(const std::string& path)> read = nullptr;
  };
  // FAILED_PRECONDITION names the flag, the file and what is expected; RESOURCE_EXHAUSTED no thread.
  static absl::StatusOr<std::shared_ptr<DenyList>> Load(const std::string& path, Options options);
  static absl::StatusOr<std::shared_ptr<DenyList>> Load(const std::string& path) { return Load(path, Options()); }
  // Waits for no read that hangs: its thread ends when the read does.
  ~DenyList();

  bool Names(absl::string_view uri) const;

 private:
  // Of the list and its thread, of which either may end first.
  struct Shared;
  explicit DenyList(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  static void ReadAgainAndAgain(Shared& shared);

  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRANSPORT_DENY_LIST_H_
