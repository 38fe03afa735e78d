#include "server/observe/line_writer.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "kernels/base/status_macros.h"
#include "server/base/steady_cond_var.h"
#include "server/base/steady_time.h"
#include "server/base/thread.h"

namespace paramshard::server {
namespace {

int64_t CountLines(absl::string_view text) { return std::count(text.begin(), text.end(), '\n'); }

// Waits until the descriptor is writable; another process may have made it non-blocking. Returns false on an error.
bool AwaitWritable(int fd) {
  pollfd writable{.fd = fd, .events = POLLOUT, .revents = 0};
  return poll(&writable, 1, -1) > 0 || errno == EINTR;
}

// Writes all text, blocking. Returns the rest after an error.
absl::string_view WriteAll(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written > 0) {
      text.remove_prefix(written);
    } else if (errno != EINTR && !(errno == EAGAIN && AwaitWritable(fd))) {
      break;
    }
  }
  return text;
}

}  // namespace

class LineWriter::Queue {
 public:
  explicit Queue(Options options) : options_(std::move(options)) {}

  void Add(absl::string_view line) {
    absl::MutexLock lock(&mu_);
    // After a dropped line, drops all lines until the thread takes the queue, so that the gap is in the right place.
    if (dropped_ > 0 || text_.size() + line.size() + 1 > options_.capacity_bytes) {
      ++dropped_;
      return;
    }
    absl::StrAppend(&text_, line, "\n");
  }

  bool AwaitEmpty(absl::Duration timeout) {
    const SteadyTime deadline = SteadyDeadline(timeout);
    absl::MutexLock lock(&mu_);
    while (!IsIdle()) {
      if (idle_.WaitUntil(&mu_, deadline)) return IsIdle();
    }
    return true;
  }

  void Stop() {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
  }

  // Body of the thread.
  void Run() {
    std::string text;
    int64_t dropped = 0;
    while (Take(text, dropped)) Write(text, dropped);
  }

 private:
  // Dropped lines come after all lines of the queue, because lines are dropped while it is full.
  bool Take(std::string& text, int64_t& dropped) {
    absl::MutexLock lock(&mu_);
    writing_ = false;
    if (IsIdle()) idle_.SignalAll();
    mu_.Await(absl::Condition(this, &Queue::HasWork));
    text.clear();
    text.swap(text_);
    dropped = std::exchange(dropped_, 0);
    writing_ = true;
    return !text.empty() || dropped > 0;
  }

  void Write(const std::string& text, int64_t dropped) {
    WriteGap();
    missing_ += CountLines(WriteAll(options_.fd, text)) + dropped;
    if (dropped > 0) WriteGap();
  }

  void WriteGap() {
    if (missing_ > 0 && WriteAll(options_.fd, options_.gap(missing_) + "\n").empty()) missing_ = 0;
  }

  bool HasWork() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stopped_ || !text_.empty() || dropped_ > 0; }
  bool IsIdle() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !writing_ && text_.empty() && dropped_ == 0; }

  const Options options_;
  int64_t missing_ = 0;  // lines neither written nor reported as missing; used by the thread only

  absl::Mutex mu_;
  SteadyCondVar idle_;
  std::string text_ ABSL_GUARDED_BY(mu_);
  int64_t dropped_ ABSL_GUARDED_BY(mu_) = 0;  // since text_ was last taken
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

absl::StatusOr<std::unique_ptr<LineWriter>> LineWriter::Start(Options options) {
  auto queue = std::make_shared<Queue>(std::move(options));
  ASSIGN_OR_RETURN(std::thread thread, StartThread("the log", [queue] { queue->Run(); }));
  // A thread that is blocked in a write cannot be joined; it owns what it uses.
  thread.detach();
  return std::unique_ptr<LineWriter>(new LineWriter(std::move(queue)));
}

LineWriter::LineWriter(std::shared_ptr<Queue> queue) : queue_(std::move(queue)) {}
LineWriter::~LineWriter() { queue_->Stop(); }
void LineWriter::Write(absl::string_view line) { queue_->Add(line); }
bool LineWriter::Flush(absl::Duration timeout) { return queue_->AwaitEmpty(timeout); }

}  // namespace paramshard::server
