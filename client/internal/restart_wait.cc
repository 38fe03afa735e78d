#include "client/internal/restart_wait.h"

#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace paramshard::internal {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(10);
constexpr absl::Duration kLongestPause = absl::Milliseconds(250);

// Nothing can wake the pause: the daemon does not run yet. A signal ends the pause early, which does no harm.
void PauseFor(absl::Duration pause) {
  poll(nullptr, 0, static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(pause, absl::Milliseconds(1)))));
}

}  // namespace

RestartWait::RestartWait(std::string call, absl::Duration timeout, std::function<void(absl::string_view)> on_wait,
                         Interruption interruption)
    : call_(std::move(call)),
      timeout_(timeout),
      on_wait_(std::move(on_wait)),
      interruption_(std::move(interruption)),
      left_(timeout),
      pause_(kFirstPause) {}

bool RestartWait::Pause(const absl::Status& failure) {
  if (!absl::IsUnavailable(failure)) return false;
  if (!outage_.has_value()) outage_ = Deadline::After(left_);
  const absl::Duration left = outage_->Left();
  if (left <= absl::ZeroDuration()) return false;
  Tell(failure);
  PauseFor(std::min(pause_, left));
  pause_ = std::min(pause_ * 2, kLongestPause);
  interrupted_ = interruption_.Ask();
  return interrupted_.ok();
}

void RestartWait::Reached() {
  if (!outage_.has_value()) return;
  left_ = outage_->Left();
  outage_.reset();
}

void RestartWait::Tell(const absl::Status& failure) {
  if (std::exchange(told_, true)) return;
  absl::string_view why = failure.message();
  absl::ConsumePrefix(&why, absl::StrCat(call_, ": "));
  const std::string text = absl::StrCat(call_, ": ", why, "; retrying for up to ", absl::FormatDuration(timeout_));
  if (on_wait_ != nullptr) {
    on_wait_(text);
  } else {
    std::fputs(absl::StrCat("paramshard: ", text, "\n").c_str(), stderr);
  }
}

absl::Status RestartWait::Explain(const absl::Status& failure) const {
  if (!interrupted_.ok()) return interrupted_;
  if (!told_ || !absl::IsUnavailable(failure)) return failure;
  return absl::UnavailableError(absl::StrCat(failure.message(), "; timed out after ", absl::FormatDuration(timeout_)));
}

}  // namespace paramshard::internal
