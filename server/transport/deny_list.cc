#include "server/transport/deny_list.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"
#include "proto/safetensors/regular_file.h"
#include "proto/tls/identity.h"

namespace paramshard::server {
namespace {

constexpr int64_t kMostBytes = 1 << 20;
constexpr absl::Duration kInterval = absl::Seconds(2);

absl::StatusOr<std::vector<std::string>> ReadPatterns(const std::string& path) {
  const absl::StatusOr<std::string> text = safetensors::ReadWholeFile(path, kMostBytes);
  if (!text.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--tls-deny-file: a file with a URI in each line, or an empty one, expected: ", text.status().message()));
  }
  std::vector<std::string> patterns;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (!line.empty() && !absl::StartsWith(line, "#")) patterns.emplace_back(line);
  }
  return patterns;
}

}  // namespace

absl::StatusOr<std::shared_ptr<DenyList>> DenyList::Load(const std::string& path, const Clock& clock) {
  ASSIGN_OR_RETURN(std::vector<std::string> patterns, ReadPatterns(path));
  return std::shared_ptr<DenyList>(new DenyList(path, clock, std::move(patterns)));
}

bool DenyList::Names(absl::string_view uri) {
  absl::MutexLock lock(&mu_);
  ReadAgain();
  return std::any_of(patterns_.begin(), patterns_.end(),
                     [&](const std::string& pattern) { return tls::MatchesPattern(pattern, uri); });
}

void DenyList::ReadAgain() {
  const SteadyTime now = clock_.Now();
  if (now < After(read_at_, kInterval)) return;
  read_at_ = now;
  absl::StatusOr<std::vector<std::string>> patterns = ReadPatterns(path_);
  if (!patterns.ok()) {
    return log_.Write(LogLevel::kWarning, "the deny list cannot be read, and the last one holds",
                      {{"why", std::string(patterns.status().message())}});
  }
  if (*patterns == patterns_) return;
  patterns_ = *std::move(patterns);
  Log(LogLevel::kInfo, "the deny list has changed", {{"path", path_}, {"lines", absl::StrCat(patterns_.size())}});
}

}  // namespace paramshard::server
