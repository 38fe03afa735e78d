#include "client/demo/retries.h"

#include <algorithm>

namespace paramshard::demo {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(10);
constexpr absl::Duration kLongestPause = absl::Seconds(1);
constexpr int kLastDoubling = 7;  // 1.28 s, which is more than the longest

}  // namespace

std::optional<absl::Duration> Retries::Next(const absl::Status& status) {
  const bool passes = absl::IsAborted(status) || absl::IsUnavailable(status);
  if (!passes || count_ == kMax) return std::nullopt;
  const int doublings = std::min(count_++, kLastDoubling);
  return std::min(kFirstPause * (1 << doublings), kLongestPause);
}

}  // namespace paramshard::demo
