#include "tests/support/gpu_fault.h"

#include <fcntl.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/shared_memory/file_descriptor.h"
#include "kernels/base/polling.h"
#include "kernels/base/status_macros.h"

namespace paramshard::test {

absl::Status GpuFault::Break(absl::Duration timeout) const {
  const wire::FileDescriptor file(open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  if (!file.valid()) return absl::ErrnoToStatus(errno, absl::StrCat("ask for a fault by ", path_));
  ASSIGN_OR_RETURN(const bool is_broken, Poll({.timeout = timeout}, [this]() -> absl::StatusOr<bool> {
                     return access(path_.c_str(), F_OK) != 0;
                   }));
  if (is_broken) return absl::OkStatus();
  unlink(path_.c_str());
  return absl::DeadlineExceededError("timed out waiting for the server to break its GPU");
}

}  // namespace paramshard::test
