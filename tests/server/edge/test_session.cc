#include "tests/server/edge/test_session.h"

#include <utility>

namespace paramshard::server {

v1::AttachRequest MakeAttach(std::string model, int rank) {
  v1::AttachRequest attach;
  attach.set_model(std::move(model));
  attach.set_rank(rank);
  return attach;
}

TestSession::TestSession(const std::string& socket_dir) : client_(socket_dir) { Reopen(); }

TestSession::~TestSession() {
  context_->TryCancel();
  if (!finished_) (void)Finish();
}

void TestSession::Reopen() {
  if (stream_ != nullptr && !finished_) (void)Finish();
  finished_ = false;
  context_ = client_.Context();
  stream_ = client_.trainer().Session(context_.get());
}

void TestSession::Attach(const v1::AttachRequest& attach) {
  v1::SessionRequest request;
  *request.mutable_attach() = attach;
  stream_->Write(request);
}

void TestSession::SendCommand(const v1::Command& command) {
  v1::SessionRequest request;
  *request.mutable_command() = command;
  stream_->Write(request);
}

v1::SessionResponse TestSession::Read() {
  v1::SessionResponse response;
  return stream_->Read(&response) ? response : v1::SessionResponse();
}

bool TestSession::AwaitStarted() { return Read().has_accepted() && Read().has_started(); }

v1::EpochEnded TestSession::AwaitEnded() {
  while (true) {
    const v1::SessionResponse response = Read();
    if (response.has_ended() || response.message_case() == v1::SessionResponse::MESSAGE_NOT_SET)
      return response.ended();
  }
}

absl::Status TestSession::Finish() {
  finished_ = true;
  v1::SessionResponse response;
  while (stream_->Read(&response)) {
  }
  return FromGrpc(stream_->Finish());
}

}  // namespace paramshard::server
