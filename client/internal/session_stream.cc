#include "client/internal/session_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/internal/grpc_status.h"
#include "proto/wire/handoff.h"

namespace paramshard::internal {
namespace {

absl::Status Overdue(const char* what) {
  return absl::DeadlineExceededError(absl::StrCat("session: ", what, " expected from the daemon, none came in time"));
}

}  // namespace

SessionStream::SessionStream(std::shared_ptr<grpc::Channel> channel)
    : channel_(std::move(channel)), stub_(v1::TrainerService::NewStub(channel_)) {}

absl::StatusOr<std::unique_ptr<SessionStream>> SessionStream::Open(std::shared_ptr<grpc::Channel> channel,
                                                                   const std::string& token,
                                                                   const v1::AttachRequest& attach,
                                                                   const Deadline& deadline) {
  std::unique_ptr<SessionStream> stream(new SessionStream(std::move(channel)));
  stream->context_.AddMetadata(wire::kTokenMetadata, token);
  stream->call_ = stream->stub_->PrepareAsyncSession(&stream->context_, &stream->queue_);
  stream->call_->StartCall(stream.get());
  bool sent = stream->Complete(deadline);
  if (sent) {
    v1::SessionRequest request;
    *request.mutable_attach() = attach;
    stream->call_->Write(request, stream.get());
    sent = stream->Complete(deadline);
  }
  if (stream->overdue_) return Overdue("a session");
  if (!sent) return stream->Finish(deadline);
  return stream;
}

SessionStream::~SessionStream() {
  if (!finished_) {
    context_.TryCancel();
    Finish(Deadline::After(absl::InfiniteDuration())).IgnoreError();
  }
  queue_.Shutdown();
  void* tag;
  bool ok;
  while (queue_.Next(&tag, &ok)) {
  }
}

bool SessionStream::Complete(const Deadline& deadline) {
  void* tag;
  bool ok = false;
  if (queue_.AsyncNext(&tag, &ok, deadline.ToGrpc()) == grpc::CompletionQueue::GOT_EVENT) return ok;
  overdue_ = true;
  context_.TryCancel();
  queue_.Next(&tag, &ok);
  return false;
}

absl::Status SessionStream::Finish(const Deadline& deadline) {
  grpc::Status status;
  call_->Finish(&status, this);
  Complete(deadline);
  finished_ = true;
  if (status.ok()) return absl::AbortedError("session: the daemon has ended it");
  return FromGrpc(status);
}

absl::StatusOr<v1::SessionResponse> SessionStream::Read(const Deadline& deadline) {
  v1::SessionResponse response;
  call_->Read(&response, this);
  if (Complete(deadline)) return response;
  if (overdue_) return Overdue("a message");
  return Finish(deadline);
}

absl::Status SessionStream::Detach(int64_t command_count, const Deadline& deadline) {
  if (finished_) return absl::OkStatus();
  v1::SessionRequest request;
  request.mutable_detach()->set_command_count(command_count);
  call_->Write(request, this);
  bool open = Complete(deadline);
  v1::SessionResponse response;
  while (open && !response.has_ended()) {
    call_->Read(&response, this);
    open = Complete(deadline);
  }
  return overdue_ ? Overdue("leave to go") : absl::OkStatus();
}

absl::Status SessionStream::Close(const Deadline& deadline) {
  if (finished_) return absl::OkStatus();
  call_->WritesDone(this);
  bool open = Complete(deadline);
  v1::SessionResponse response;
  while (open) {
    call_->Read(&response, this);
    open = Complete(deadline);
  }
  if (!overdue_) Finish(deadline).IgnoreError();
  return overdue_ ? Overdue("the end of the session") : absl::OkStatus();
}

}  // namespace paramshard::internal
