#include "client/internal/command_executor.h"

#include <atomic>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace paramshard::internal {

absl::Status CommandExecutor::Begin(absl::string_view call, Worker worker) {
  words_.clear();
  pending_answer_ = {};
  worker_ = worker;
  stream_ = worker.value_or(memory_.own_stream());
  stream_has_work_ = worker.has_value();
  if (!worker.has_value() || memory_.gpu() >= 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(call, " on a stream: want a session with a GPU, got rank ", rank_, ", which is in host memory"));
}

absl::Status CommandExecutor::BeginReturn(absl::string_view call, Worker worker) {
  RETURN_IF_ERROR(Begin(call, worker));
  if (!worker.has_value()) stream_ = memory_.return_stream();
  return absl::OkStatus();
}

absl::Status CommandExecutor::FollowTrainer() {
  if (worker_.has_value() || memory_.gpu() < 0) return absl::OkStatus();
  stream_has_work_ = true;
  return memory_.FollowDefaultStream(stream_);
}

absl::Status CommandExecutor::AwaitAnswer(int64_t commit_number) {
  if (!worker_.has_value()) return page_.AwaitAnswer(commit_number);
  const AwaitedAnswer answer = {memory_.IdOf(stream_), commit_number};
  if (answer.stream_id != 0) {
    const bool is_enqueued =
        answer.stream_id == enqueued_answer_.stream_id && commit_number <= enqueued_answer_.commit_number;
    if (is_enqueued) return absl::OkStatus();
    pending_answer_ = answer;
  }
  AppendAwait(page_.words().committed(), commit_number);
  return absl::OkStatus();
}

absl::Status CommandExecutor::Await(wire::Word& word, int64_t number) {
  if (!worker_.has_value()) return page_.Await(word, number);
  AppendAwait(word, number);
  return absl::OkStatus();
}

void CommandExecutor::AppendAwait(wire::Word& word, int64_t number) {
  if (page_.Reached(word, number)) return;
  stream_has_work_ = true;
  words_.push_back({.kind = WordOperation::Kind::kAwait, .word = &word, .value = static_cast<uint32_t>(number)});
}

void CommandExecutor::AwaitWriter(wire::Word& word, int64_t number, GpuStream writer) {
  if (writer != stream_) return AppendAwait(word, number);
  if (!page_.Reached(word, number)) stream_has_work_ = true;
}

absl::Status CommandExecutor::Copy(absl::Span<const ByteCopy> copies) {
  if (copies.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(Flush());
  stream_has_work_ = memory_.gpu() >= 0;
  return memory_.Copy(copies, stream_);
}

absl::Status CommandExecutor::Zero(uint8_t* data, int64_t bytes) {
  RETURN_IF_ERROR(Flush());
  stream_has_work_ = memory_.gpu() >= 0;
  return memory_.Zero(data, bytes, stream_);
}

absl::Status CommandExecutor::CopyGradients(absl::Span<const GradientCopy> copies) {
  if (copies.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(Flush());
  stream_has_work_ = memory_.gpu() >= 0;
  return memory_.CopyGradients(copies, stream_);
}

bool CommandExecutor::Write(wire::Word& word, int64_t number) {
  const auto value = static_cast<uint32_t>(number);
  if (stream_has_work_) {
    words_.push_back({.kind = WordOperation::Kind::kWrite, .word = &word, .value = value});
  } else {
    word.value.store(value, std::memory_order_release);
  }
  return stream_has_work_;
}

absl::Status CommandExecutor::Flush() {
  if (words_.empty()) return absl::OkStatus();
  const absl::Status enqueued = memory_.EnqueueWords(words_, stream_);
  words_.clear();
  if (enqueued.ok() && pending_answer_.commit_number > 0) enqueued_answer_ = pending_answer_;
  return enqueued;
}

absl::Status CommandExecutor::Finish() {
  RETURN_IF_ERROR(Flush());
  return worker_.has_value() ? absl::OkStatus() : memory_.Synchronize(stream_);
}

}  // namespace paramshard::internal
