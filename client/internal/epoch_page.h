// A trainer's end of the words page: commands go out, waits come in, and the end of the epoch is
// seen.
#ifndef PARAMSHARD_CLIENT_INTERNAL_EPOCH_PAGE_H_
#define PARAMSHARD_CLIENT_INTERNAL_EPOCH_PAGE_H_

#include <sys/types.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/internal/interruption.h"
#include "client/internal/owner_process.h"
#include "common/shared_memory/ring.h"
#include "common/shared_memory/words.h"
#include "paramshard/v1/trainer.pb.h"

namespace paramshard::internal {

// Owns nothing: page and pidfd outlive it. Used by one thread at a time, except End and status. In a forked child its
// status is an error, and nothing else may be called.
class EpochPage {
 public:
  EpochPage(const wire::Words& words, int daemon_pidfd, pid_t daemon_pid, Interruption interruption = {});

  const wire::Words& words() const { return words_; }

  // FAILED_PRECONDITION in a child that was forked after the session began: the page belongs to its parent.
  absl::Status CheckProcess() const { return owner_.Check("session"); }
  bool IsOwn() const { return owner_.IsCaller(); }

  // OK while the epoch runs, else why it ended; the error of CheckProcess before all others.
  absl::Status status() const;
  // Ends the page on this side, unless it has ended.
  void End(const absl::Status& why) const;
  // Ends the page if the daemon has died, and returns true then.
  bool EndIfDaemonDied() const;

  // The number that the next command will carry.
  int64_t next_number() const { return next_number_; }
  // Numbers the command and hands it to the daemon, waiting for room in the ring. INVALID_ARGUMENT
  // for a command that is too large for it.
  absl::StatusOr<int64_t> Send(v1::Command command);

  // Waits until a daemon word has reached a number's low 32 bits. The epoch's end also ends the
  // wait, and so does an interruption.
  absl::Status Await(const wire::Word& word, int64_t number) const;
  bool Reached(const wire::Word& word, int64_t number) const;

  // Returns true if the commit has been answered. Unlike other words, this one is valid after
  // the epoch's end.
  bool Answered(int64_t commit_number) const;
  // Waits for that answer; the epoch's end status when it will not come.
  absl::Status AwaitAnswer(int64_t commit_number) const;

 private:
  // Returns an interruption, or why the epoch ended.
  absl::Status CheckWait() const;

  const OwnerProcess owner_;
  const Interruption interruption_;
  wire::Words words_;
  int daemon_pidfd_;
  pid_t daemon_pid_;
  wire::RingWriter writer_;
  int64_t next_number_ = 1;
};

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_EPOCH_PAGE_H_
