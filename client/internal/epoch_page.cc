#include "client/internal/epoch_page.h"

#include <poll.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/internal/deadline.h"
#include "kernels/base/status_macros.h"

namespace paramshard::internal {
namespace {

// The watch ends the page when the daemon dies; short waits detect a daemon that died while it wrote the end.
constexpr absl::Duration kWaitSlice = Interruption::kSlice;
constexpr absl::Duration kRingSlice = absl::Milliseconds(1);
// The daemon reads commands as they come, also commands that it cannot carry out yet.
constexpr absl::Duration kRingTimeout = absl::Seconds(30);

uint32_t Low(int64_t number) { return static_cast<uint32_t>(number); }

}  // namespace

EpochPage::EpochPage(const wire::Words& words, int daemon_pidfd, pid_t daemon_pid, Interruption interruption)
    : interruption_(std::move(interruption)),
      words_(words),
      daemon_pidfd_(daemon_pidfd),
      daemon_pid_(daemon_pid),
      writer_(words) {}

absl::Status EpochPage::status() const {
  RETURN_IF_ERROR(CheckProcess());
  const uint32_t code = words_.end_code();
  if (code == 0) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(code), words_.EndText());
}

void EpochPage::End(const absl::Status& why) const {
  words_.Finish(wire::Side::kClient, static_cast<uint32_t>(why.code()), why.message());
}

bool EpochPage::EndIfDaemonDied() const {
  pollfd daemon{.fd = daemon_pidfd_, .events = POLLIN, .revents = 0};
  if (poll(&daemon, 1, 0) <= 0) return false;
  End(absl::UnavailableError(absl::StrCat("the daemon (pid ", daemon_pid_,
                                          ") has died; open the model again, and go on from its commit number")));
  return true;
}

absl::Status EpochPage::CheckWait() const {
  EndIfDaemonDied();
  RETURN_IF_ERROR(status());
  return interruption_.Ask();
}

absl::StatusOr<int64_t> EpochPage::Send(v1::Command command) {
  command.set_number(next_number_);
  const std::string record = command.SerializeAsString();
  if (record.size() > wire::kMaxRecordBytes) {
    return absl::InvalidArgumentError(absl::StrCat("command ", next_number_, ": want at most ", wire::kMaxRecordBytes,
                                                   " bytes, got ", record.size()));
  }
  const Deadline deadline = Deadline::After(kRingTimeout);
  while (true) {
    RETURN_IF_ERROR(status());
    const uint32_t tail = words_.ring_tail().value.load(std::memory_order_acquire);
    if (writer_.TryWrite(record)) return next_number_++;
    if (deadline.Passed()) {
      return absl::DeadlineExceededError(absl::StrCat("command ", next_number_, ": timed out: the daemon (pid ",
                                                      daemon_pid_, ") has not read the command ring for ",
                                                      absl::FormatDuration(kRingTimeout)));
    }
    words_.AwaitReached(words_.ring_tail(), tail + 1, kRingSlice);
    EndIfDaemonDied();
  }
}

absl::Status EpochPage::Await(const wire::Word& word, int64_t number) const {
  RETURN_IF_ERROR(CheckProcess());
  while (!words_.AwaitReached(word, Low(number), kWaitSlice)) RETURN_IF_ERROR(CheckWait());
  // The end moves every word ahead of every number.
  return status();
}

bool EpochPage::Reached(const wire::Word& word, int64_t number) const {
  return wire::Reached(word.value.load(std::memory_order_acquire), Low(number));
}

bool EpochPage::Answered(int64_t commit_number) const {
  const int32_t ahead =
      static_cast<int32_t>(words_.committed().value.load(std::memory_order_acquire) - Low(commit_number));
  // After the end the word may be kFinishedStep ahead of the truth; commits in flight are far fewer
  // than that.
  constexpr int32_t kStep = static_cast<int32_t>(wire::kFinishedStep);
  return (ahead >= kStep / 2 ? ahead - kStep : ahead) >= 0;
}

absl::Status EpochPage::AwaitAnswer(int64_t commit_number) const {
  RETURN_IF_ERROR(CheckProcess());
  while (!Answered(commit_number)) {
    RETURN_IF_ERROR(status());
    if (!words_.AwaitReached(words_.committed(), Low(commit_number), kWaitSlice)) {
      EndIfDaemonDied();
      RETURN_IF_ERROR(interruption_.Ask());
    }
  }
  return absl::OkStatus();
}

}  // namespace paramshard::internal
