#include "server/mirrors/plane_versions.h"

#include <algorithm>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/base/clock.h"

namespace paramshard::server {

v1::PlaneVersion ToProto(const wire::PublishedVersion& version) {
  v1::PlaneVersion message;
  message.set_history_id(std::string(version.history()));
  message.set_commit_number(version.commit_number);
  message.set_version(version.version);
  return message;
}

absl::StatusOr<wire::PublishedVersion> FromProto(const v1::PlaneVersion& message) {
  const std::string& history = message.history_id();
  if (history.size() != wire::kHistoryIdBytes || !absl::c_all_of(history, absl::ascii_isxdigit) ||
      message.commit_number() < 0 || message.version() < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "version: want a history of ", wire::kHistoryIdBytes, " hexadecimal digits and numbers >= 0, got a history of ",
        history.size(), " bytes, commit ", message.commit_number(), ", version ", message.version()));
  }
  wire::PublishedVersion version{.commit_number = message.commit_number(), .version = message.version()};
  absl::c_copy(history, version.history_id);
  return version;
}

wire::PublishedVersion VersionChoice::Next(const wire::PublishedVersion& present,
                                           absl::FunctionRef<bool(const wire::PublishedVersion&)> is_busy,
                                           SteadyTime now) {
  const bool is_history = choice_.has_value() && choice_->history() == present.history();
  if (!is_history) misses_ = 0;
  const bool stays = is_history && !missed_ && (choice_->commit_number >= present.commit_number || is_busy(*choice_));
  if (stays) return *choice_;
  const int64_t ahead = misses_ == 0 ? 0 : int64_t{1} << (misses_ - 1);
  choice_ = present;
  choice_->commit_number += ahead;
  chosen_at_ = now;
  missed_ = false;
  received_ = false;
  return *choice_;
}

void VersionChoice::OnMissed(const wire::PublishedVersion& version, bool timed_out,
                             const wire::PublishedVersion& present, SteadyTime now) {
  if (!choice_.has_value() || missed_ || !IsSameState(*choice_, version)) return;
  const bool is_past = present.history() != version.history() || present.commit_number >= version.commit_number;
  if (timed_out ? now < After(chosen_at_, kLeastWait) : !is_past) return;
  missed_ = true;
  misses_ = timed_out ? 0 : std::min(misses_ + 1, kMostMisses);
}

void VersionChoice::OnReceived(const wire::PublishedVersion& version) {
  if (!choice_.has_value() || received_ || !IsSameState(*choice_, version)) return;
  received_ = true;
  misses_ = std::max(misses_ - 1, std::min(misses_, 1));
}

}  // namespace paramshard::server
