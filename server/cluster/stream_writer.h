// Writes messages to a gRPC stream without making their senders wait.
#ifndef PARAMSHARD_SERVER_CLUSTER_STREAM_WRITER_H_
#define PARAMSHARD_SERVER_CLUSTER_STREAM_WRITER_H_

#include <deque>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kernels/base/status_macros.h"
#include "server/base/thread.h"

namespace paramshard::server {

// A queue and the thread that writes it out in order. Once a write fails the rest is dropped: whoever reads the stream
// learns that it broke. Thread-safe.
template <typename Stream, typename Message>
class StreamWriter {
 public:
  // `stream` outlives the writer. RESOURCE_EXHAUSTED no thread.
  static absl::StatusOr<std::unique_ptr<StreamWriter>> Start(Stream* stream) {
    std::unique_ptr<StreamWriter> writer(new StreamWriter(stream));
    ASSIGN_OR_RETURN(writer->thread_, StartThread("a stream between daemons", [raw = writer.get()] { raw->Run(); }));
    return writer;
  }

  // Waits for a write in progress, which ends when the stream does; messages that are left are dropped.
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
    messages_.push_back(std::move(message));
    changed_.SignalAll();
  }

 private:
  explicit StreamWriter(Stream* stream) : stream_(stream) {}

  void Run() {
    while (true) {
      Message message;
      {
        absl::MutexLock lock(&mu_);
        while (!closed_ && messages_.empty()) changed_.Wait(&mu_);
        if (closed_) return;
        message = std::move(messages_.front());
        messages_.pop_front();
      }
      if (stream_->Write(message)) continue;
      absl::MutexLock lock(&mu_);
      closed_ = true;
    }
  }

  Stream* const stream_;
  std::thread thread_;  // set before anybody else knows the writer

  absl::Mutex mu_;
  absl::CondVar changed_;
  std::deque<Message> messages_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CLUSTER_STREAM_WRITER_H_
