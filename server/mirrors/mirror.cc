#include "server/mirrors/mirror.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/model/names.h"
#include "common/rpc/durations.h"
#include "kernels/base/status_macros.h"
#include "server/base/thread.h"
#include "server/mirrors/plane_versions.h"
#include "server/observe/log.h"

namespace paramshard::server {
namespace {

// A mirror asks again after an eighth of the time since the last news, within these: often where commits come fast.
constexpr absl::Duration kShortestPause = absl::Milliseconds(20);
constexpr absl::Duration kLongestPause = absl::Milliseconds(100);
constexpr int kPausesOfNews = 8;
constexpr absl::Duration kPauseAfterFailure = absl::Seconds(1);
// Where node 0 has no news, it answers so much later.
constexpr absl::Duration kWaitForNews = absl::Seconds(1);
// Each model takes a thread.
constexpr size_t kMostModels = 1024;

}  // namespace

absl::StatusOr<std::unique_ptr<Mirror>> Mirror::Start(Options options) {
  std::unique_ptr<Mirror> mirror(new Mirror(std::move(options)));
  Log(LogLevel::kInfo, "mirroring",
      {{"source", mirror->source_.address()}, {"activates", mirror->options_.activates ? "at once" : "by order"}});
  ASSIGN_OR_RETURN(mirror->thread_, StartThread("the mirror", [self = mirror.get()] { self->Run(); }));
  return mirror;
}

void Mirror::Stop() {
  {
    absl::MutexLock lock(&mu_);
    if (std::exchange(stopped_, true)) return;
    changed_.SignalAll();
  }
  source_.Stop();
  if (thread_.joinable()) thread_.join();
  std::map<std::string, std::shared_ptr<ModelFollower>, std::less<>> followers;
  {
    absl::MutexLock lock(&mu_);
    followers = std::exchange(followers_, {});
  }
  for (const auto& [name, follower] : followers) {
    if (const std::shared_ptr<MirroredModel> model = follower->model()) model->End("the mirror stops");
  }
}

void Mirror::Run() {
  absl::Duration pause;
  SteadyTime asked_at;
  do {
    asked_at = SteadyNow();
    const absl::Status asked = Ask();
    absl::MutexLock lock(&mu_);
    if (!asked.ok() && answered_.ok() && !stopped_) {
      Log(LogLevel::kWarning, "the training does not answer", {{"why", asked.ToString()}});
    }
    if (asked.ok() && !answered_.ok()) Log(LogLevel::kInfo, "the training answers again", {});
    answered_ = asked;
    pause = absl::FromChrono(SteadyNow() - changed_at_) / kPausesOfNews;
    pause = asked.ok() ? std::clamp(pause, kShortestPause, kLongestPause) : kPauseAfterFailure;
  } while (AwaitTurn(After(asked_at, pause)));
}

bool Mirror::AwaitTurn(SteadyTime turn) {
  absl::MutexLock lock(&mu_);
  while (!stopped_ && !hurries_ && !changed_.WaitUntil(&mu_, turn)) {
  }
  hurries_ = false;
  return !stopped_;
}

absl::Status Mirror::Ask() {
  v1::AskVersionsRequest request;
  *request.mutable_wait() = DurationToProto(kWaitForNews);
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [name, follower] : followers_) {
      if (std::optional<v1::AskVersionsRequest::Missed> missed = follower->TakeMissed()) {
        *request.add_missed() = *std::move(missed);
      }
      *request.add_reports() = follower->Report();
    }
  }
  ASSIGN_OR_RETURN(const v1::AskVersionsResponse response, source_.AskVersions(request));
  HandOut(response);
  return absl::OkStatus();
}

void Mirror::HandOut(const v1::AskVersionsResponse& response) {
  std::vector<std::shared_ptr<ModelFollower>> gone;
  std::set<absl::string_view> named;
  {
    absl::MutexLock lock(&mu_);
    std::string answer = response.SerializeAsString();
    if (answer != last_answer_) {
      last_answer_ = std::move(answer);
      changed_at_ = SteadyNow();
    }
    for (const v1::AskVersionsResponse::Named& model : response.models()) {
      if (!CheckName(model.model()).ok() || !FromProto(model.version()).ok() ||
          (!followers_.contains(model.model()) && followers_.size() >= kMostModels)) {
        continue;
      }
      named.insert(model.model());
      std::shared_ptr<ModelFollower>& follower = followers_[model.model()];
      if (follower == nullptr) {
        absl::StatusOr<std::unique_ptr<ModelFollower>> started =
            ModelFollower::Start({.model = model.model(),
                                  .mirror = options_.name,
                                  .source = &source_,
                                  .devices = options_.devices,
                                  .activates = options_.activates,
                                  .publication = options_.publication,
                                  .memory_limit_bytes = options_.memory_limit_bytes,
                                  .left_readers = options_.left_readers,
                                  .on_missed = [this] {
                                    absl::MutexLock lock(&mu_);
                                    hurries_ = true;
                                    changed_.SignalAll();
                                  }});
        if (!started.ok()) {
          Log(LogLevel::kError, "mirror cannot follow a model",
              {{"model", model.model()}, {"why", started.status().ToString()}});
          followers_.erase(model.model());
          continue;
        }
        follower = *std::move(started);
      }
      follower->Follow(model);
    }
    for (auto entry = followers_.begin(); entry != followers_.end();) {
      if (named.contains(entry->first)) {
        ++entry;
        continue;
      }
      gone.push_back(std::move(entry->second));
      entry = followers_.erase(entry);
    }
  }
  // The last owner waits for the thread.
  for (const std::shared_ptr<ModelFollower>& follower : gone) {
    const std::string model = follower->Report().model();
    Log(LogLevel::kInfo, "a mirrored model is gone", {{"model", model}});
    follower->End(absl::StrCat("model ", model, ": not found at ", source_.address()));
  }
}

absl::StatusOr<std::shared_ptr<ModelFollower>> Mirror::FindFollower(absl::string_view model) const {
  absl::MutexLock lock(&mu_);
  const auto found = followers_.find(model);
  if (found != followers_.end()) return found->second;
  if (!answered_.ok()) {
    return absl::NotFoundError(
        absl::StrCat("model ", model, ": not found; this mirror has not reached its training: ", answered_.message()));
  }
  std::vector<absl::string_view> names;
  for (const auto& [name, follower] : followers_) names.push_back(name);
  return absl::NotFoundError(
      absl::StrCat("model ", model, ": not found; this mirror holds [", absl::StrJoin(names, ", "), "]"));
}

absl::StatusOr<PublishedPlanes> Mirror::Find(absl::string_view model) const {
  ASSIGN_OR_RETURN(const std::shared_ptr<ModelFollower> follower, FindFollower(model));
  if (const std::shared_ptr<MirroredModel> mirrored = follower->model()) return mirrored->published();
  const std::string why = follower->Report().last_error();
  return absl::NotFoundError(absl::StrCat("model ", model, ": not received yet", why.empty() ? "" : ": ", why));
}

std::vector<PublishedPlanes> Mirror::List() const {
  absl::MutexLock lock(&mu_);
  std::vector<PublishedPlanes> all;
  for (const auto& [name, follower] : followers_) {
    if (const std::shared_ptr<MirroredModel> model = follower->model()) all.push_back(model->published());
  }
  return all;
}

absl::Status Mirror::Activate(absl::string_view model, int64_t commit_number) {
  ASSIGN_OR_RETURN(const std::shared_ptr<ModelFollower> follower, FindFollower(model));
  return follower->Activate(commit_number);
}

std::vector<v1::MirrorReport> Mirror::Reports() const {
  absl::MutexLock lock(&mu_);
  std::vector<v1::MirrorReport> reports;
  for (const auto& [name, follower] : followers_) reports.push_back(follower->Report());
  if (reports.empty()) reports.emplace_back().set_mirror(options_.name);
  for (v1::MirrorReport& report : reports) {
    if (!answered_.ok()) report.set_last_error(ErrorText(answered_));
  }
  return reports;
}

}  // namespace paramshard::server
