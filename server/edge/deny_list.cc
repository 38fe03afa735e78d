#include "server/edge/deny_list.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/safetensors/regular_file.h"
#include "common/tls/identity.h"
#include "kernels/base/status_macros.h"
#include "server/base/clock.h"
#include "server/base/steady_cond_var.h"
#include "server/base/thread.h"
#include "server/observe/log_throttle.h"

namespace paramshard::server {
namespace {

constexpr int64_t kMostBytes = 1 << 20;
// A longer read is logged.
constexpr absl::Duration kTimeout = absl::Seconds(10);

absl::StatusOr<std::string> ReadFromDisk(const std::string& path) {
  return safetensors::ReadWholeFile(path, kMostBytes);
}

absl::StatusOr<std::vector<std::string>> PatternsOf(const absl::StatusOr<std::string>& text) {
  if (!text.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--tls-deny-file: want a file with a URI in each line, or an empty file: ", text.status().message()));
  }
  std::vector<std::string> patterns;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (!line.empty() && !absl::StartsWith(line, "#")) patterns.emplace_back(line);
  }
  return patterns;
}

}  // namespace

struct DenyList::Shared {
  Shared(std::string file, Options read_options, std::vector<std::string> first)
      : path(std::move(file)), options(std::move(read_options)), patterns(std::move(first)) {}

  // Returns false when the list is gone.
  bool AwaitNextRead() ABSL_LOCKS_EXCLUDED(mu);
  void Take(absl::StatusOr<std::vector<std::string>> read) ABSL_LOCKS_EXCLUDED(mu);
  void SayWhenAReadHangs() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  const std::string path;
  const Options options;
  ThrottledLog log;
  LogThrottle hangs;
  absl::Mutex mu;
  SteadyCondVar changed;
  std::vector<std::string> patterns ABSL_GUARDED_BY(mu);
  bool is_over ABSL_GUARDED_BY(mu) = false;
  std::optional<SteadyTime> reads_since ABSL_GUARDED_BY(mu);  // while it does
};

bool DenyList::Shared::AwaitNextRead() {
  absl::MutexLock lock(&mu);
  reads_since.reset();
  const SteadyTime next = SteadyDeadline(options.interval);
  while (!is_over && !changed.WaitUntil(&mu, next)) {
  }
  if (is_over) return false;
  reads_since = SteadyNow();
  return true;
}

void DenyList::Shared::Take(absl::StatusOr<std::vector<std::string>> read) {
  absl::MutexLock lock(&mu);
  if (is_over) return;
  if (!read.ok()) {
    return log.Write(LogLevel::kWarning, "failed to read the deny list; the previous one applies",
                     {{"why", std::string(read.status().message())}});
  }
  if (*read == patterns) return;
  patterns = *std::move(read);
  Log(LogLevel::kInfo, "deny list changed", {{"path", path}, {"lines", absl::StrCat(patterns.size())}});
}

// Runs on callers' threads, because the list's own thread hangs.
void DenyList::Shared::SayWhenAReadHangs() {
  if (!reads_since.has_value() || SteadyNow() < After(*reads_since, kTimeout)) return;
  if (const std::optional<int64_t> count = hangs.Pass(); !count.has_value()) return;
  Log(LogLevel::kWarning, "failed to read the deny list; the previous one applies",
      {{"why", absl::StrCat(path, ": the disk has not answered for more than ", absl::FormatDuration(kTimeout))}});
}

absl::StatusOr<std::shared_ptr<DenyList>> DenyList::Load(const std::string& path, Options options) {
  if (options.read == nullptr) options.read = ReadFromDisk;
  ASSIGN_OR_RETURN(std::vector<std::string> patterns, PatternsOf(options.read(path)));
  std::shared_ptr<DenyList> list(new DenyList(std::make_shared<Shared>(path, std::move(options), std::move(patterns))));
  ASSIGN_OR_RETURN(list->thread_,
                   StartThread("the deny list", [shared = list->shared_] { ReadAgainAndAgain(*shared); }));
  return list;
}

DenyList::~DenyList() {
  if (!thread_.joinable()) return;
  absl::ReleasableMutexLock lock(&shared_->mu);
  shared_->is_over = true;
  shared_->changed.SignalAll();
  const bool may_hang = shared_->reads_since.has_value();
  lock.Release();
  if (may_hang) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

bool DenyList::Names(absl::string_view uri) const {
  absl::MutexLock lock(&shared_->mu);
  shared_->SayWhenAReadHangs();
  return std::any_of(shared_->patterns.begin(), shared_->patterns.end(),
                     [&](const std::string& pattern) { return tls::MatchesPattern(pattern, uri); });
}

void DenyList::ReadAgainAndAgain(Shared& shared) {
  while (shared.AwaitNextRead()) shared.Take(PatternsOf(shared.options.read(shared.path)));
}

}  // namespace paramshard::server
