#include "server/service/call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/steady_time.h"
#include "server/service/grpc_status.h"

namespace paramshard::server {

Call* Call::Start(const CallMethod& method, Requests requests, grpc::CallbackServerContext* context,
                  Callers::Admission admission, std::function<void(Call&)> body) {
  Call* const call = new Call(method, context, std::move(admission), std::move(body));
  if (requests == Requests::kOne) {
    call->StartRead(&call->request_);
  } else {
    call->Dispatch();
  }
  return call;
}

Call::Call(const CallMethod& method, grpc::CallbackServerContext* context, Callers::Admission admission,
           std::function<void(Call&)> body)
    : method_(method), context_(context), admission_(std::move(admission)), body_(std::move(body)) {}

void Call::Dispatch() {
  {
    absl::MutexLock lock(&mu_);
    dispatched_ = true;
  }
  if (method_.workers->Post([this] { body_(*this); })) return;
  End(absl::ResourceExhaustedError(
      absl::StrCat(method_.name, ": the daemon carries out as many calls of this kind as it may; try again later")));
}

bool Call::IsCancelled() const {
  absl::MutexLock lock(&mu_);
  return !failure_.ok() || context_->IsCancelled();
}

absl::Status Call::Parse(google::protobuf::MessageLite& request) {
  absl::Status status = ParseMessage(method_.name, request_, request);
  request_.Clear();
  return status;
}

bool Call::Read(google::protobuf::MessageLite& request) {
  {
    absl::MutexLock lock(&mu_);
    if (!failure_.ok()) return false;
    read_.reset();
  }
  StartRead(&request_);
  {
    absl::MutexLock lock(&mu_);
    if (!Await(read_)) return false;
  }
  const absl::Status parsed = Parse(request);
  absl::MutexLock lock(&mu_);
  failure_ = parsed;
  return parsed.ok();
}

bool Call::Write(const google::protobuf::MessageLite& response) {
  response_ = SerializeMessage(response);
  {
    absl::MutexLock lock(&mu_);
    if (!failure_.ok()) return false;
    written_.reset();
  }
  StartWrite(&response_);
  absl::MutexLock lock(&mu_);
  if (Await(written_)) return true;
  // Nothing may be under way at the end; a cancelled call gives a write up at once.
  if (!written_.has_value()) context_->TryCancel();
  while (!written_.has_value()) changed_.Wait(&mu_);
  return false;
}

bool Call::Await(std::optional<bool>& done) {
  const SteadyTime deadline = SteadyDeadline(kCallStallTimeout);
  while (!done.has_value()) {
    if (!changed_.WaitUntil(&mu_, deadline) || done.has_value()) continue;
    failure_ = absl::DeadlineExceededError(absl::StrCat(
        method_.name, ": the caller neither sent nor took anything for ", absl::FormatDuration(kCallStallTimeout)));
    return false;
  }
  return *done;
}

void Call::OnReadDone(bool ok) {
  {
    absl::MutexLock lock(&mu_);
    if (dispatched_) {
      read_ = ok;
      changed_.SignalAll();
      return;
    }
  }
  if (ok) return Dispatch();
  End(absl::InvalidArgumentError(absl::StrCat(method_.name, ": a request expected, got none")));
}

void Call::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mu_);
  written_ = ok;
  changed_.SignalAll();
}

void Call::End(const absl::Status& status) {
  absl::Status end = status;
  {
    absl::MutexLock lock(&mu_);
    if (!failure_.ok()) end = failure_;
  }
  Finish(ToGrpc(end));
}

void Call::Answer(const google::protobuf::MessageLite& response) {
  response_ = SerializeMessage(response);
  StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
}

}  // namespace paramshard::server
