// Runs the waits and copies of a session on the host or on a stream, by the same calls.
#ifndef PARAMSHARD_CLIENT_INTERNAL_COMMAND_EXECUTOR_H_
#define PARAMSHARD_CLIENT_INTERNAL_COMMAND_EXECUTOR_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/internal/epoch_page.h"
#include "client/internal/tensor_memory.h"
#include "common/shared_memory/words.h"

namespace paramshard::internal {

// A handle's work is done by the host, or by a stream.
using Worker = std::optional<GpuStream>;

// Carries out waits, copies and writes of words, in the order of the calls. The host waits itself; where it copies in
// memory of a GPU, the session's own stream does that, and Finish waits for it. On a stream everything is enqueued,
// words in batches, and the host waits for nothing.
//
//   RETURN_IF_ERROR(executor.Begin("wait", worker));
//   RETURN_IF_ERROR(executor.Await(word, number));
//   RETURN_IF_ERROR(executor.Copy(copies));
//   RETURN_IF_ERROR(executor.Finish());
class CommandExecutor {
 public:
  // Both outlive the executor. `rank` is for messages.
  CommandExecutor(EpochPage* page, TensorMemory* memory, int rank) : page_(*page), memory_(*memory), rank_(rank) {}
  CommandExecutor(const CommandExecutor&) = delete;
  CommandExecutor& operator=(const CommandExecutor&) = delete;

  // Forgets what was not enqueued. FAILED_PRECONDITION for a stream where the memory is the host's.
  absl::Status Begin(absl::string_view call, Worker worker);
  // Begin for what the trainer gives back: without a worker it uses a stream that the host never waits for.
  absl::Status BeginReturn(absl::string_view call, Worker worker);

  // The stream that does what is enqueued: the worker's, or the session's own; null in host memory.
  GpuStream stream() const { return stream_; }

  // Orders later operations after the work so far of the GPU's default stream and of the streams that wait for it. Only
  // where the host is the worker: a trainer that names a stream orders its work by it.
  absl::Status FollowTrainer();

  // Waits until a commit is answered. A stream waits once, however often it is told to in a row.
  absl::Status AwaitAnswer(int64_t commit_number);
  // Waits until a word of the daemon has reached a number.
  absl::Status Await(wire::Word& word, int64_t number);
  // Waits until `writer`, one of the trainer's streams, has written a number to a word of the trainer. stream() waits,
  // also where the host is the worker.
  void AwaitWriter(wire::Word& word, int64_t number, GpuStream writer);

  // Copies inside the memory. Copies do not overlap, and have no order among themselves.
  absl::Status Copy(absl::Span<const ByteCopy> copies);
  absl::Status Zero(uint8_t* data, int64_t bytes);
  // Copies gradients from memory of the trainer. Targets do not overlap.
  absl::Status CopyGradients(absl::Span<const GradientCopy> copies);

  // Stores a word of the trainer after all earlier operations: at once where they are done. Returns true if stream()
  // will store it.
  bool Write(wire::Word& word, int64_t number);

  // Enqueues the words that are still pending.
  absl::Status Flush();
  // Does the same, and waits until all is done where the host is the worker.
  absl::Status Finish();

 private:
  // A commit whose answer a stream waits for.
  struct AwaitedAnswer {
    uint64_t stream_id = 0;
    int64_t commit_number = 0;
  };

  void AppendAwait(wire::Word& word, int64_t number);

  EpochPage& page_;
  TensorMemory& memory_;
  const int rank_;
  Worker worker_;
  GpuStream stream_ = nullptr;
  bool stream_has_work_ = false;      // which later operations follow
  std::vector<WordOperation> words_;  // not enqueued yet
  AwaitedAnswer pending_answer_;      // among words_
  AwaitedAnswer enqueued_answer_;     // the last one that was enqueued
};

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_COMMAND_EXECUTOR_H_
