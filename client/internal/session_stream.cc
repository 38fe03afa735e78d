#include "client/internal/session_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/internal/grpc_status.h"
#include "common/shared_memory/companion_packet.h"

namespace paramshard::internal {

SessionStream::SessionStream(std::shared_ptr<grpc::Channel> channel, Interruption interruption)
    : channel_(std::move(channel)),
      stub_(v1::TrainerService::NewStub(channel_)),
      interruption_(std::move(interruption)) {}

absl::StatusOr<std::unique_ptr<SessionStream>> SessionStream::Open(std::shared_ptr<grpc::Channel> channel,
                                                                   const std::string& token,
                                                                   const v1::AttachRequest& attach,
                                                                   const Deadline& deadline,
                                                                   Interruption interruption) {
  std::unique_ptr<SessionStream> stream(new SessionStream(std::move(channel), std::move(interruption)));
  stream->context_.AddMetadata(wire::kTokenMetadata, token);
  stream->call_ = stream->stub_->PrepareAsyncSession(&stream->context_, &stream->queue_);
  stream->call_->StartCall(stream.get());
  bool sent = stream->Complete(deadline, stream->interruption_);
  if (sent) {
    v1::SessionRequest request;
    *request.mutable_attach() = attach;
    stream->call_->Write(request, stream.get());
    sent = stream->Complete(deadline, stream->interruption_);
  }
  if (!stream->given_up_.ok()) return stream->GivenUp("a session");
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

bool SessionStream::Complete(const Deadline& deadline, const Interruption& interruption) {
  const absl::StatusOr<bool> succeeded = interruption.NextEvent(queue_, deadline);
  if (succeeded.ok()) return *succeeded;
  given_up_ = succeeded.status();
  context_.TryCancel();
  void* tag;
  bool ok;
  queue_.Next(&tag, &ok);
  return false;
}

absl::Status SessionStream::GivenUp(absl::string_view what) const {
  if (!absl::IsDeadlineExceeded(given_up_)) return given_up_;
  return absl::DeadlineExceededError(absl::StrCat("session: timed out waiting for ", what, " from the daemon"));
}

absl::Status SessionStream::Finish(const Deadline& deadline) {
  grpc::Status status;
  call_->Finish(&status, this);
  Complete(deadline);
  finished_ = true;
  if (status.ok()) return absl::AbortedError("session: the daemon ended the session");
  return FromGrpc(status);
}

absl::StatusOr<v1::SessionResponse> SessionStream::Read(const Deadline& deadline) {
  v1::SessionResponse response;
  call_->Read(&response, this);
  if (Complete(deadline, interruption_)) return response;
  if (!given_up_.ok()) return GivenUp("a message");
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
  return given_up_.ok() ? absl::OkStatus() : GivenUp("the answer to detach");
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
  if (!given_up_.ok()) return GivenUp("the end of the session");
  Finish(deadline).IgnoreError();
  return absl::OkStatus();
}

}  // namespace paramshard::internal
