#include "server/edge/call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/steady_time.h"
#include "server/edge/grpc_status.h"

namespace paramshard::server {

Call* Call::Start(const CallMethod& method, grpc::CallbackServerContext* context, Callers::Admission admission,
                  std::function<void(Call&)> body) {
  const std::shared_ptr<Call> call(new Call(method, context, std::move(admission), std::move(body)));
  call->Begin();
  return call.get();
}

Call::Call(const CallMethod& method, grpc::CallbackServerContext* context, Callers::Admission admission,
           std::function<void(Call&)> body)
    : method_(method),
      context_(context),
      caller_(admission.caller()),
      body_(std::move(body)),
      admission_(std::move(admission)),
      timer_(&mu_),
      time_left_(method.timeout) {}

void Call::Begin() {
  absl::MutexLock lock(&mu_);
  self_ = shared_from_this();
  timer_.Set(method_.timeout.longest_wait, self_, [this] {
    mu_.AssertHeld();
    EndLocked(Late("the request"));
  });
  StartRead(&request_);
}

void Call::Dispatch() {
  if (method_.workers->Post(caller(),
                            [self = shared_from_this()](Workers::Place place) { self->Run(std::move(place)); })) {
    return;
  }
  End(absl::ResourceExhaustedError(absl::StrCat(
      method_.name, ": too many calls of this kind are in progress, in all or for this caller; try again later")));
}

void Call::Run(Workers::Place place) {
  {
    absl::MutexLock lock(&mu_);
    place_.emplace(std::move(place));
  }
  body_(*this);
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
  if (!Receive()) return false;
  const absl::Status parsed = Parse(request);
  absl::MutexLock lock(&mu_);
  failure_ = parsed;
  return parsed.ok();
}

bool Call::Receive() {
  {
    absl::MutexLock lock(&mu_);
    if (!failure_.ok()) return false;
    if (!std::exchange(first_read_, true)) return true;
    read_.reset();
  }
  StartRead(&request_);
  absl::MutexLock lock(&mu_);
  return Await(read_, request_);
}

bool Call::Write(grpc::ByteBuffer response) {
  {
    absl::MutexLock lock(&mu_);
    if (!failure_.ok()) return false;  // a write that was late may still be in progress
    written_.reset();
  }
  response_ = std::move(response);
  StartWrite(&response_);
  absl::MutexLock lock(&mu_);
  if (Await(written_, response_)) return true;
  if (!written_.has_value()) context_->TryCancel();
  return false;
}

bool Call::Await(std::optional<bool>& done, const grpc::ByteBuffer& message) {
  const SteadyTime begin = SteadyNow();
  const SteadyTime deadline = begin + absl::ToChronoNanoseconds(time_left_.left());
  while (!done.has_value()) {
    if (!changed_.WaitUntil(&mu_, deadline) || done.has_value()) continue;
    failure_ = Late("messages");
    return false;
  }
  if (*done) time_left_.Spend(absl::FromChrono(SteadyNow() - begin), static_cast<int64_t>(message.Length()));
  return *done;
}

absl::Status Call::Late(absl::string_view expected) const {
  const CallerTimeout& timeout = method_.timeout;
  return absl::DeadlineExceededError(absl::StrCat(
      method_.name, ": timed out waiting for ", expected, ": the limit is ", absl::FormatDuration(timeout.longest_wait),
      " of waiting, and a second more for each ", timeout.bytes_per_second, " bytes that the caller sends or takes"));
}

void Call::OnReadDone(bool ok) {
  {
    absl::MutexLock lock(&mu_);
    if (ended_) return;  // the message has not come in time
    if (dispatched_) {
      read_ = ok;
      return changed_.SignalAll();
    }
    timer_.Stop();
    dispatched_ = true;
  }
  if (ok) return Dispatch();
  End(absl::InvalidArgumentError(absl::StrCat(method_.name, ": the stream ended without a request")));
}

void Call::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mu_);
  written_ = ok;
  if (awaited_end_.has_value()) return Finish(ToGrpc(*awaited_end_));
  changed_.SignalAll();
}

void Call::OnDone() {
  // They end without the lock: an admission takes that of all callers.
  std::shared_ptr<Call> self;
  std::optional<Callers::Admission> admission;
  absl::MutexLock lock(&mu_);
  timer_.Clear();
  if (admission_.has_value()) admission.emplace(*std::move(admission_));
  admission_.reset();
  self = std::move(self_);
}

void Call::End(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  EndLocked(status);
}

void Call::EndLocked(const absl::Status& status) {
  BoundEnd();
  const absl::Status& end = failure_.ok() ? status : failure_;
  method_.metrics->AddRpcEnd(end);
  if (written_.has_value()) return Finish(ToGrpc(end));
  awaited_end_ = end;
}

void Call::Answer(const google::protobuf::MessageLite& response) {
  response_ = SerializeMessage(response);
  absl::MutexLock lock(&mu_);
  BoundEnd();
  StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
}

void Call::BoundEnd() {
  ended_ = true;
  place_.reset();
  timer_.Set(method_.timeout.longest_wait, shared_from_this(), [this] { context_->TryCancel(); });
}

}  // namespace paramshard::server
