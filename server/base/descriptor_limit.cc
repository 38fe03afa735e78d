#include "server/base/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace paramshard::server {
namespace {

constexpr int64_t kMostConnections = 8192;
constexpr int64_t kDescriptorsForEach = 4;

rlimit Limits() {
  rlimit limits{};
  getrlimit(RLIMIT_NOFILE, &limits);
  return limits;
}

}  // namespace

int64_t DescriptorLimit() {
  return static_cast<int64_t>(std::min<rlim_t>(Limits().rlim_cur, std::numeric_limits<int>::max()));
}

int64_t RaiseDescriptorLimit() {
  rlimit limits = Limits();
  limits.rlim_cur = limits.rlim_max;
  // If this fails, the old limit stays; RaiseDescriptorLimitTo checks whether it is enough.
  (void)setrlimit(RLIMIT_NOFILE, &limits);
  return DescriptorLimit();
}

absl::Status RaiseDescriptorLimitTo(int64_t least) {
  const int64_t limit = RaiseDescriptorLimit();
  if (limit >= least) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("open files: want a hard limit of at least ", least, ", got ", limit,
                                                   "; raise it (ulimit -Hn, LimitNOFILE)"));
}

int CompanionConnectionsWithin(int64_t descriptor_limit) {
  return static_cast<int>(std::clamp<int64_t>(descriptor_limit / kDescriptorsForEach, 1, kMostConnections));
}

}  // namespace paramshard::server
