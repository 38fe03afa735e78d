// Writer of messages to a gRPC stream that does not make their senders wait.
#ifndef PARAMSHARD_SERVER_WORLD_STREAM_WRITER_H_
#define PARAMSHARD_SERVER_WORLD_STREAM_WRITER_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kernels/base/status_macros.h"
#include "server/base/thread.h"

namespace paramshard::server {

// A queue and a thread that writes it out in order. After a failed write the rest is dropped: the stream's reader
// learns that it broke. Ends a stream whose other end does not read. Thread-safe.
template <typename Stream, typename Message>
class StreamWriter {
 public:
  // Largest size of the messages in a queue.
  static constexpr size_t kMostBytes = size_t{64} << 20;

  // `stream` outlives the writer. `end` is called when the queue is full: it ends the stream and returns at once.
  // RESOURCE_EXHAUSTED no thread.
  static absl::StatusOr<std::unique_ptr<StreamWriter>> Start(Stream* stream, std::function<void()> end) {
    std::unique_ptr<StreamWriter> writer(new StreamWriter(stream, std::move(end)));
    ASSIGN_OR_RETURN(writer->thread_, StartThread("a stream between daemons", [raw = writer.get()] { raw->Run(); }));
    return writer;
  }

  // Waits for a write in progress, which ends when the stream does, and drops the remaining messages.
  ~StreamWriter() {
    {
      absl::MutexLock lock(&mu_);
      closed_ = true;
      changed_.SignalAll();
    }
    if (thread_.joinable()) thread_.join();
  }

  // Returns at once.
  void Write(Message message) {
    absl::MutexLock lock(&mu_);
    if (closed_) return;
    waiting_bytes_ += message.ByteSizeLong();
    if (waiting_bytes_ > kMostBytes) {
      closed_ = true;
      messages_.clear();
      end_();
    } else {
      messages_.push_back(std::move(message));
    }
    changed_.SignalAll();
  }

 private:
  StreamWriter(Stream* stream, std::function<void()> end) : stream_(stream), end_(std::move(end)) {}

  void Run() {
    while (true) {
      Message message;
      {
        absl::MutexLock lock(&mu_);
        while (!closed_ && messages_.empty()) changed_.Wait(&mu_);
        if (closed_) return;
        message = std::move(messages_.front());
        messages_.pop_front();
        waiting_bytes_ -= message.ByteSizeLong();
      }
      if (stream_->Write(message)) continue;
      absl::MutexLock lock(&mu_);
      closed_ = true;
    }
  }

  Stream* const stream_;
  const std::function<void()> end_;
  std::thread thread_;  // set before the writer is shared

  absl::Mutex mu_;
  absl::CondVar changed_;
  std::deque<Message> messages_ ABSL_GUARDED_BY(mu_);
  size_t waiting_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_STREAM_WRITER_H_
