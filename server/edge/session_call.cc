#include "server/edge/session_call.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/rpc/durations.h"
#include "common/rpc/status.h"
#include "common/shared_memory/ring.h"
#include "kernels/base/status_macros.h"
#include "paramshard/v1/trainer.pb.h"
#include "server/base/steady_time.h"
#include "server/edge/call_timer.h"
#include "server/edge/grpc_status.h"
#include "server/edge/messages.h"
#include "server/edge/trainer_messages.h"

namespace paramshard::server {
namespace {

constexpr absl::Duration kFirstMessageTimeout = absl::Seconds(5);
constexpr absl::Duration kDefaultAttachTimeout = absl::Minutes(10);
constexpr absl::Duration kMaxAttachTimeout = absl::Hours(24 * 365);
constexpr absl::Duration kTakeOverTimeout = absl::Seconds(5);
// Interval in which a take-over checks whether the killed holder has exited.
constexpr absl::Duration kTakeOverLook = absl::Milliseconds(5);
constexpr absl::Duration kLeaveTimeout = absl::Seconds(30);
// Largest request: a command that fits the ring, and the message around it.
constexpr size_t kMaxSessionRequestBytes = wire::kMaxRecordBytes + 64;

absl::StatusOr<absl::Duration> AttachTimeoutOf(const v1::AttachRequest& attach) {
  if (!attach.has_attach_timeout()) return kDefaultAttachTimeout;
  const absl::Duration timeout = DurationFromProto(attach.attach_timeout());
  if (timeout >= absl::ZeroDuration() && timeout <= kMaxAttachTimeout) return timeout;
  return absl::InvalidArgumentError(
      absl::StrCat("attach: want 0 <= attach_timeout <= ", absl::FormatDuration(kMaxAttachTimeout), ", got ",
                   absl::FormatDuration(timeout)));
}

// Kills the process that holds the rank.
absl::Status KillHolder(const RankHolder& holder, const Callers& callers, const Callers::Caller& caller, int rank) {
  if (holder.uid == caller.peer.uid) return callers.Kill(holder.session);
  return absl::PermissionDeniedError(absl::StrCat("take over rank ", rank, ": it belongs to user ", holder.uid,
                                                  " (process ", holder.pid, "); only that user may take it over"));
}

// Returns DEADLINE_EXCEEDED with the reason why the epoch has not begun, as far as this daemon can tell.
absl::Status NotBegunError(const Model& model, absl::Duration timeout) {
  const std::string within = absl::StrCat(" within ", absl::FormatDuration(timeout));
  const std::string attach = absl::StrCat("attach ", model.spec().name, ": ");
  if (const std::vector<int> missing = model.trainers().MissingRanks(); !missing.empty()) {
    return absl::DeadlineExceededError(
        absl::StrCat(attach, "ranks ", absl::StrJoin(missing, ", "), " did not come", within));
  }
  if (const absl::Status reached = model.world().cluster->CheckCoordinator(); !reached.ok()) {
    return absl::DeadlineExceededError(absl::StrCat(attach, "no epoch began", within, ": ", reached.message()));
  }
  return absl::DeadlineExceededError(absl::StrCat(
      attach, "ranks of other daemons did not come", within,
      "; `paramshardctl sessions` at each daemon shows which ranks are there, and `paramshardctl version` at node 0 "
      "which daemons are absent or held back"));
}

// A stream from its first message to its end. gRPC's threads only pass messages on; a worker acts on them. The model's
// threads put messages here and never wait for a trainer that does not read. The model may refer to this object after
// the call.
class SessionCall final : public CallReactor, public std::enable_shared_from_this<SessionCall> {
 public:
  SessionCall(ModelStore* store, Callers* callers, CallWorkers* workers, grpc::CallbackServerContext* context,
              Callers::Admission admission)
      : store_(*store),
        callers_(*callers),
        workers_(*workers->sessions),
        changes_(*workers->changes),
        context_(context),
        caller_(admission.caller()),
        admission_(std::move(admission)),
        timer_(&mu_) {}

  void Begin() {
    absl::MutexLock lock(&mu_);
    self_ = shared_from_this();
    const absl::StatusOr<int64_t> session = callers_.Open(caller_, context_);
    if (!session.ok()) {
      finished_ = true;
      store_.world().metrics->AddRpcEnd(session.status());
      return Finish(ToGrpc(session.status()));
    }
    session_ = *session;
    SetTimer(kFirstMessageTimeout, [this] { EndSilence(); });
    StartRead(&request_);
  }

 private:
  // From gRPC.
  void OnReadDone(bool ok) override {
    {
      absl::MutexLock lock(&mu_);
      if (model_ == nullptr) timer_.Stop();  // the first message has come, even if the workers take long
    }
    workers_.Post([self = shared_from_this(), ok] { self->TakeMessage(ok); });
  }
  void OnWriteDone(bool) override {
    // The reader notices a trainer that is no longer reached.
    absl::MutexLock lock(&mu_);
    writing_ = false;
    if (end_.has_value()) return EndCall(*end_);
    SendNext();
  }
  void OnDone() override {
    // They end without the lock: an admission takes that of all callers.
    std::shared_ptr<SessionCall> self;
    std::optional<Callers::Admission> admission;
    absl::MutexLock lock(&mu_);
    timer_.Clear();
    if (admission_.has_value()) admission.emplace(*std::move(admission_));
    admission_.reset();
    ReleaseModel(std::move(model_));
    self = std::move(self_);
  }

  // Called on a worker, one after the other.
  void TakeMessage(bool ok);
  absl::Status TakeFirst(bool ok);
  absl::StatusOr<v1::AttachRequest> ReadAttach(bool ok);
  // A take-over waits for the killed holder without a thread.
  struct TakeOver {
    v1::AttachRequest attach;
    absl::Duration timeout;  // of the attach
    RankHolder holder;
    SteadyTime deadline;
  };
  absl::Status BeginAttach(const v1::AttachRequest& attach, absl::Duration timeout);
  void LookAgain(TakeOver take_over) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ContinueTakeOver(TakeOver take_over);
  absl::Status Attach(const v1::AttachRequest& attach, absl::Duration timeout);
  absl::Status TakeCommand(Model& model);
  Trainer MakeTrainer(int rank);
  void GiveUpWaiting(absl::Duration timeout);
  // Lets the trainer leave, or sends it away; `by_itself`: it has asked for it.
  void Leave(Model& model, const absl::Status& why, bool by_itself);
  // Null before the attach, and after the end of the call.
  std::shared_ptr<Model> model() {
    absl::MutexLock lock(&mu_);
    return model_;
  }

  // Called by the model's threads.
  void Put(v1::SessionResponse response);

  // Timers.
  void SetTimer(absl::Duration wait, std::function<void()> then) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    timer_.Set(wait, weak_from_this(), std::move(then));
  }
  void EndSilence();
  void EndLeave();

  // Releases the model on another thread: its last owner waits for its epoch's end, which must not happen under a lock.
  void ReleaseModel(std::shared_ptr<Model> model) {
    changes_.Post([model = std::move(model)] {});
  }

  void SendNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the call, once. A write in progress is given up first.
  void EndCall(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  ModelStore& store_;
  Callers& callers_;
  Workers& workers_;
  Workers& changes_;
  grpc::CallbackServerContext* const context_;  // valid until OnDone
  const Callers::Caller caller_;
  int64_t session_ = 0;  // constant after Begin

  grpc::ByteBuffer request_;  // gRPC's while it reads, else the worker's

  absl::Mutex mu_;
  std::optional<Callers::Admission> admission_ ABSL_GUARDED_BY(mu_);  // until OnDone
  std::shared_ptr<Model> model_ ABSL_GUARDED_BY(mu_);                 // from the attach until OnDone
  std::shared_ptr<SessionCall> self_ ABSL_GUARDED_BY(mu_);            // until OnDone
  grpc::ByteBuffer response_ ABSL_GUARDED_BY(mu_);                    // being written
  std::deque<v1::SessionResponse> outbox_ ABSL_GUARDED_BY(mu_);
  bool accepted_ ABSL_GUARDED_BY(mu_) = false;  // before that nothing is sent
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  bool told_end_ ABSL_GUARDED_BY(mu_) = false;  // the model's last message is in the outbox
  bool leaving_ ABSL_GUARDED_BY(mu_) = false;
  bool left_by_itself_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);  // waits for the write in progress
  bool finished_ ABSL_GUARDED_BY(mu_) = false;            // gRPC takes nothing more
  CallTimer timer_ ABSL_GUARDED_BY(mu_);
};

// --- Messages ---

void SessionCall::TakeMessage(bool ok) {
  std::shared_ptr<Model> model;
  {
    absl::MutexLock lock(&mu_);
    if (finished_) return;
    model = model_;
  }
  if (model == nullptr) {
    if (const absl::Status status = TakeFirst(ok); !status.ok()) {
      absl::MutexLock lock(&mu_);
      EndCall(status);
    }
    return;
  }
  if (!ok) {
    // The stream of a killed trainer may break before its pidfd tells: the error names the process here too.
    return Leave(*model, absl::AbortedError(absl::StrCat("process ", caller_.peer.pid, " has left")),
                 /*by_itself=*/true);
  }
  if (const absl::Status status = TakeCommand(*model); !status.ok()) {
    return Leave(*model, status, /*by_itself=*/false);
  }
  absl::MutexLock lock(&mu_);
  if (!finished_) StartRead(&request_);
}

absl::StatusOr<v1::AttachRequest> SessionCall::ReadAttach(bool ok) {
  if (!ok) return absl::AbortedError("session: the stream closed before attach");
  v1::SessionRequest request;
  RETURN_IF_ERROR(ParseMessage("session", request_, request));
  if (request.has_attach()) return request.attach();
  return absl::InvalidArgumentError("session: want attach as the first message, got another message");
}

absl::Status SessionCall::TakeFirst(bool ok) {
  ASSIGN_OR_RETURN(const v1::AttachRequest attach, ReadAttach(ok));
  ASSIGN_OR_RETURN(const absl::Duration timeout, AttachTimeoutOf(attach));
  return BeginAttach(attach, timeout);
}

absl::Status SessionCall::BeginAttach(const v1::AttachRequest& attach, absl::Duration timeout) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Model> model, store_.Find(attach.model()));
  const RankHolder holder = attach.take_over() ? model->trainers().HolderOf(attach.rank()) : RankHolder();
  if (holder.session == 0) return Attach(attach, timeout);
  RETURN_IF_ERROR(KillHolder(holder, callers_, caller_, attach.rank()));
  absl::MutexLock lock(&mu_);
  LookAgain({.attach = attach, .timeout = timeout, .holder = holder, .deadline = SteadyDeadline(kTakeOverTimeout)});
  return absl::OkStatus();
}

void SessionCall::LookAgain(TakeOver take_over) {
  SetTimer(kTakeOverLook, [this, take_over = std::move(take_over)] {
    workers_.Post([self = shared_from_this(), take_over] { self->ContinueTakeOver(take_over); });
  });
}

void SessionCall::ContinueTakeOver(TakeOver take_over) {
  const int rank = take_over.attach.rank();
  const absl::StatusOr<std::shared_ptr<Model>> model = store_.Find(take_over.attach.model());
  const bool waits = model.ok() && (*model)->trainers().HolderOf(rank).session == take_over.holder.session;
  absl::Status status = absl::OkStatus();
  if (!waits) {
    status = Attach(take_over.attach, take_over.timeout);
  } else if (SteadyNow() >= take_over.deadline) {
    status = absl::DeadlineExceededError(
        absl::StrCat("take over rank ", rank, ": process ", take_over.holder.pid, " did not exit after it was killed"));
  }
  absl::MutexLock lock(&mu_);
  if (!status.ok()) return EndCall(status);
  if (waits) LookAgain(std::move(take_over));
}

absl::Status SessionCall::Attach(const v1::AttachRequest& attach, absl::Duration timeout) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Model> model, store_.Find(attach.model()));
  RETURN_IF_ERROR(callers_.Bind(caller_, model));
  RETURN_IF_ERROR(model->trainers().Attach(MakeTrainer(attach.rank())));
  store_.left_readers().NoteTrainer(caller_.peer.pid);
  // Callers::Gone could not remove a trainer that went between Bind and Attach.
  if (const absl::Status present = callers_.CheckPresent(caller_); !present.ok())
    model->trainers().Leave(session_, present);
  v1::SessionResponse response;
  response.mutable_accepted()->set_session(session_);
  for (int rank : model->trainers().MissingRanks()) response.mutable_accepted()->add_missing_ranks(rank);
  absl::MutexLock lock(&mu_);
  model_ = model;
  // The epoch may have begun already.
  if (outbox_.empty()) {
    SetTimer(timeout, [this, timeout] {
      workers_.Post([self = shared_from_this(), timeout] { self->GiveUpWaiting(timeout); });
    });
  }
  outbox_.push_front(std::move(response));
  accepted_ = true;
  SendNext();
  if (!finished_) StartRead(&request_);
  return absl::OkStatus();
}

void SessionCall::GiveUpWaiting(absl::Duration timeout) {
  const std::shared_ptr<Model> waited = model();
  if (waited == nullptr) return;
  // If the epoch has begun since the timer fired, the trainer stays.
  waited->trainers().LeaveIfWaiting(session_, NotBegunError(*waited, timeout));
}

absl::Status SessionCall::TakeCommand(Model& model) {
  if (request_.Length() > kMaxSessionRequestBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("session: want a command of at most ", wire::kMaxRecordBytes, " bytes, got ", request_.Length()));
  }
  v1::SessionRequest request;
  RETURN_IF_ERROR(ParseMessage("session", request_, request));
  if (request.has_detach()) {
    {
      // This comes first: the end that it asks for may come at once.
      absl::MutexLock lock(&mu_);
      left_by_itself_ = true;
    }
    return model.trainers().Detach(session_, request.detach().command_count());
  }
  if (!request.has_command()) {
    return absl::InvalidArgumentError("session: want a command or a detach, got another message");
  }
  return model.trainers().Submit(session_, request.command());
}

Trainer SessionCall::MakeTrainer(int rank) {
  const auto self = shared_from_this();
  return {.session = session_,
          .rank = rank,
          .pid = caller_.peer.pid,
          .uid = caller_.peer.uid,
          .attached_at = absl::Now(),
          .send_memory = [&companion = callers_.companion(), token = caller_.token](
                             const auto& message, auto fds) { return companion.Send(token, message, fds); },
          .on_started =
              [self](const EpochStartInfo& greeting) {
                v1::SessionResponse response;
                *response.mutable_started() = ToProto(greeting);
                self->Put(std::move(response));
              },
          .on_ended =
              [self](const EpochEndInfo& farewell) {
                v1::SessionResponse response;
                *response.mutable_ended() = ToProto(farewell);
                self->Put(std::move(response));
              }};
}

void SessionCall::Leave(Model& model, const absl::Status& why, bool by_itself) {
  {
    absl::MutexLock lock(&mu_);
    if (!told_end_ && !leaving_) {
      leaving_ = true;
      left_by_itself_ = by_itself;
      SetTimer(kLeaveTimeout, [this] { EndLeave(); });
    }
  }
  model.trainers().Leave(session_, why);
}

// --- What the trainer is told ---

void SessionCall::Put(v1::SessionResponse response) {
  absl::MutexLock lock(&mu_);
  if (finished_) return;
  if (response.has_ended()) {
    told_end_ = true;
    // Bounds the wait for a trainer that does not read.
    SetTimer(kLeaveTimeout, [this] { EndLeave(); });
  } else if (!leaving_) {
    started_ = true;
    timer_.Stop();
  }
  outbox_.push_back(std::move(response));
  SendNext();
}

// The end is the last message, and the call's status.
void SessionCall::SendNext() {
  if (!accepted_ || writing_ || finished_ || end_.has_value() || outbox_.empty()) return;
  const v1::SessionResponse response = std::move(outbox_.front());
  outbox_.pop_front();
  response_ = SerializeMessage(response);
  if (!response.has_ended()) {
    writing_ = true;
    return StartWrite(&response_);
  }
  finished_ = true;
  ReleaseModel(callers_.Close(caller_));
  // A trainer that closes its stream has asked for the end that it gets.
  const absl::Status end = left_by_itself_ ? absl::OkStatus() : ReasonFromProto(response.ended().why());
  store_.world().metrics->AddRpcEnd(end);
  StartWriteAndFinish(&response_, grpc::WriteOptions(), ToGrpc(end));
}

void SessionCall::EndCall(const absl::Status& status) {
  if (finished_) return;
  if (writing_) {
    end_ = status;
    return context_->TryCancel();
  }
  finished_ = true;
  // This comes first: a client that knows of the end may open the next session.
  ReleaseModel(callers_.Close(caller_));
  store_.world().metrics->AddRpcEnd(status);
  Finish(ToGrpc(status));
}

// --- Timers ---

void SessionCall::EndSilence() {
  mu_.AssertHeld();
  EndCall(absl::DeadlineExceededError(
      absl::StrCat("session: timed out after ", absl::FormatDuration(kFirstMessageTimeout), " without an attach")));
}

void SessionCall::EndLeave() {
  mu_.AssertHeld();
  // A trainer that does not read keeps the last message from leaving.
  if (finished_) return context_->TryCancel();
  EndCall(absl::DeadlineExceededError("detach: timed out waiting for the epoch to end"));
}

}  // namespace

CallReactor* StartSession(ModelStore* store, Callers* callers, CallWorkers* workers,
                          grpc::CallbackServerContext* context, Callers::Admission admission) {
  const auto session = std::make_shared<SessionCall>(store, callers, workers, context, std::move(admission));
  session->Begin();
  return session.get();
}

}  // namespace paramshard::server
