// Writes messages to a gRPC stream without making their senders wait.
#ifndef PARAMSHARD_SERVER_CLUSTER_STREAM_WRITER_H_
#define PARAMSHARD_SERVER_CLUSTER_STREAM_WRITER_H_

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"

namespace paramshard::server {

// A queue and the thread that writes it out in order. Once a write fails the rest is dropped:
// whoever reads the stream learns that it broke. Thread-safe.
template <typename Stream, typename Message>
class StreamWriter {
 public:
  // `stream` outlives the writer.
  explicit StreamWriter(Stream* stream) : stream_(stream), thread_([this] { Run(); }) {}
  // Waits for a write in progress, which ends when the stream does; messages that are left are
  // dropped.
  ~StreamWriter() {
    {
      std::lock_guard<std::mutex> lock(mu_);
      closed_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

  // Returns at once.
  void Write(Message message) {
    std::lock_guard<std::mutex> lock(mu_);
    if (closed_) return;
    messages_.push_back(std::move(message));
    changed_.notify_all();
  }

 private:
  void Run() {
    std::unique_lock<std::mutex> lock(mu_);
    for (;;) {
      changed_.wait(lock, [this] { return closed_ || !messages_.empty(); });
      if (closed_) return;
      const Message message = std::move(messages_.front());
      messages_.pop_front();
      lock.unlock();
      const bool written = stream_->Write(message);
      lock.lock();
      if (!written) closed_ = true;
    }
  }

  Stream* const stream_;
  std::mutex mu_;
  std::condition_variable changed_;
  // Guarded by mu_.
  std::deque<Message> messages_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;

  std::thread thread_;  // last: it uses the rest
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CLUSTER_STREAM_WRITER_H_
