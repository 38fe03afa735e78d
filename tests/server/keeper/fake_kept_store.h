// A KeptStore in the test's own process: what a server keeps in it outlives the server's objects.
#ifndef PARAMSHARD_TESTS_SERVER_KEEPER_FAKE_KEPT_STORE_H_
#define PARAMSHARD_TESTS_SERVER_KEEPER_FAKE_KEPT_STORE_H_

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <iterator>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "kernels/base/status_macros.h"
#include "server/base/kept_store.h"

namespace paramshard::server {

class FakeKeptStore final : public KeptStore {
 public:
  absl::Status Keep(absl::string_view name, int fd) override {
    if (name.empty() || name.size() > kMaxNameBytes) {
      return absl::InvalidArgumentError("keep: want a name of 1 to 640 bytes");
    }
    if (!IsMemory(fd)) return absl::InvalidArgumentError("keep: want a descriptor of memory");
    ASSIGN_OR_RETURN(wire::FileDescriptor own, Duplicate(fd));
    absl::MutexLock lock(&mu_);
    kept_[std::string(name)] = std::move(own);
    return absl::OkStatus();
  }

  absl::Status DropPrefix(absl::string_view prefix) override {
    absl::MutexLock lock(&mu_);
    const auto dropped = [prefix](const auto& entry) { return absl::StartsWith(entry.first, prefix); };
    for (auto it = kept_.begin(); it != kept_.end();) it = dropped(*it) ? kept_.erase(it) : std::next(it);
    return absl::OkStatus();
  }

  absl::StatusOr<Descriptors> Take(absl::string_view prefix) override {
    absl::MutexLock lock(&mu_);
    Descriptors taken;
    for (const auto& [name, fd] : kept_) {
      if (name == prefix || !absl::StartsWith(name, prefix)) continue;
      ASSIGN_OR_RETURN(taken[name], Duplicate(fd.get()));
    }
    return taken;
  }

 private:
  static bool IsMemory(int fd) {
    struct stat info {};
    return fstat(fd, &info) == 0 && !S_ISSOCK(info.st_mode) && !S_ISFIFO(info.st_mode) && !S_ISDIR(info.st_mode);
  }
  static absl::StatusOr<wire::FileDescriptor> Duplicate(int fd) {
    wire::FileDescriptor own(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!own.valid()) return absl::ErrnoToStatus(errno, "keep: duplicate a descriptor");
    return own;
  }

  absl::Mutex mu_;
  Descriptors kept_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_KEEPER_FAKE_KEPT_STORE_H_
