#include "server/service/session_handler.h"

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

constexpr absl::Duration kDefaultAttachTimeout = absl::Minutes(10);
constexpr absl::Duration kTakeOverTimeout = absl::Seconds(5);
constexpr absl::Duration kLeaveTimeout = absl::Seconds(30);

absl::Duration FromProto(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

// What the model says to the trainer, until the handler has sent it. The model's threads may outlive the call, and
// never wait for a trainer that does not read.
class Outbox {
 public:
  void Put(v1::SessionResponse response) {
    absl::MutexLock lock(&mu_);
    if (response.has_started()) started_ = true;
    if (response.has_ended()) ended_ = true;
    messages_.push_back(std::move(response));
    changed_.Signal();
  }

  // The next message; none when the deadline passes first: that of the start, or of the end once the trainer leaves.
  std::optional<v1::SessionResponse> Take() {
    absl::MutexLock lock(&mu_);
    while (messages_.empty() && absl::Now() < Deadline()) changed_.WaitWithDeadline(&mu_, Deadline());
    if (messages_.empty()) return std::nullopt;
    v1::SessionResponse response = std::move(messages_.front());
    messages_.pop_front();
    return response;
  }

  void SetStartDeadline(absl::Time deadline) {
    absl::MutexLock lock(&mu_);
    start_deadline_ = deadline;
  }
  // The trainer leaves. False when it has left or heard of the end before.
  bool Leave() {
    absl::MutexLock lock(&mu_);
    if (ended_ || end_deadline_ < absl::InfiniteFuture()) return false;
    end_deadline_ = absl::Now() + kLeaveTimeout;
    changed_.Signal();
    return true;
  }

 private:
  absl::Time Deadline() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return started_ || end_deadline_ < absl::InfiniteFuture() ? end_deadline_ : start_deadline_;
  }

  absl::Mutex mu_;
  absl::CondVar changed_;
  std::deque<v1::SessionResponse> messages_ ABSL_GUARDED_BY(mu_);
  absl::Time start_deadline_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  absl::Time end_deadline_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

absl::Status TakeOver(Model& model, Callers& callers, const Callers::Caller& caller, int rank) {
  const Model::Holder holder = model.HolderOf(rank);
  if (holder.session == 0) return absl::OkStatus();
  if (holder.uid != caller.peer.uid) {
    return absl::PermissionDeniedError(absl::StrCat("take over rank ", rank, ": a holder of user ", caller.peer.uid,
                                                    " expected, got process ", holder.pid, " of user ", holder.uid));
  }
  RETURN_IF_ERROR(callers.Kill(holder.session));
  if (model.AwaitDeparture(rank, holder.session, kTakeOverTimeout)) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("take over rank ", rank, ": process ", holder.pid, " was killed but did not go"));
}

Trainer MakeTrainer(const Callers& callers, const Callers::Caller& caller, int64_t session, int rank,
                    const std::shared_ptr<Outbox>& outbox) {
  return {.session = session,
          .rank = rank,
          .pid = caller.peer.pid,
          .uid = caller.peer.uid,
          .attached_at = absl::Now(),
          .send_memory = [&handoff = callers.handoff(), token = caller.token](
                             const auto& message, auto fds) { return handoff.SendMemory(token, message, fds); },
          .on_started =
              [outbox](const v1::EpochStarted& started) {
                v1::SessionResponse response;
                *response.mutable_started() = started;
                outbox->Put(std::move(response));
              },
          .on_ended =
              [outbox](const v1::EpochEnded& ended) {
                v1::SessionResponse response;
                *response.mutable_ended() = ended;
                outbox->Put(std::move(response));
              }};
}

absl::StatusOr<v1::AttachRequest> ReadAttach(SessionStream* stream) {
  v1::SessionRequest request;
  if (!stream->Read(&request)) return absl::AbortedError("session: the stream closed before attach");
  if (request.has_attach()) return request.attach();
  return absl::InvalidArgumentError("session: attach expected as the first message, got another one");
}

// One trainer's conversation, from `accepted` on: the calling thread sends, another one reads.
class Conversation {
 public:
  Conversation(Model& model, const v1::AttachRequest& attach, int64_t session, pid_t pid,
               std::shared_ptr<Outbox> outbox, SessionStream* stream)
      : model_(model), attach_(attach), session_(session), pid_(pid), outbox_(std::move(outbox)), stream_(stream) {}

  // Until the trainer has heard of the end. A stream that it does not close then is cancelled.
  absl::Status Run(grpc::ServerContext& context) {
    const absl::Duration timeout =
        attach_.has_attach_timeout() ? FromProto(attach_.attach_timeout()) : kDefaultAttachTimeout;
    outbox_->SetStartDeadline(absl::Now() + timeout);
    std::thread reader([this] { Read(); });
    const absl::Status end = Send(timeout);
    if (!read_.WaitForNotificationWithTimeout(kLeaveTimeout)) context.TryCancel();
    reader.join();
    // A trainer that detaches or closes its stream has asked for the end that it gets.
    return closed_by_trainer_ || detached_ ? absl::OkStatus() : end;
  }

 private:
  // The end, as the model says it.
  absl::Status Send(absl::Duration timeout) {
    while (true) {
      const std::optional<v1::SessionResponse> response = outbox_->Take();
      if (response.has_value()) {
        // A trainer that is not reached any more is the reader's to notice.
        stream_->Write(*response);
        if (response->has_ended()) return ToStatus(response->ended());
      } else if (outbox_->Leave()) {
        model_.Leave(session_,
                     absl::DeadlineExceededError(absl::StrCat("attach ", model_.spec().name, ": ranks ",
                                                              absl::StrJoin(model_.MissingRanks(), ", "),
                                                              " did not come within ", absl::FormatDuration(timeout))));
      } else {
        return absl::DeadlineExceededError("detach: the epoch did not end in time");
      }
    }
  }

  // Until the trainer half-closes or the stream breaks.
  void Read() {
    absl::Status why;
    v1::SessionRequest request;
    while (why.ok() && stream_->Read(&request)) {
      if (request.has_command()) {
        why = model_.Submit(session_, request.command());
      } else if (request.has_detach()) {
        why = model_.Detach(session_, request.detach().command_count());
        detached_ = why.ok();
      } else {
        why = absl::InvalidArgumentError("session: a command expected, got another message");
      }
    }
    closed_by_trainer_ = outbox_->Leave() && why.ok();
    // The stream of a killed trainer may break before its pidfd tells: the process is named here too.
    model_.Leave(session_, why.ok() ? absl::AbortedError(absl::StrCat("process ", pid_, " has left")) : why);
    read_.Notify();
  }

  static absl::Status ToStatus(const v1::EpochEnded& ended) {
    return absl::Status(static_cast<absl::StatusCode>(ended.code()), ended.message());
  }

  // Constant after construction.
  Model& model_;
  const v1::AttachRequest& attach_;
  const int64_t session_;
  const pid_t pid_;
  const std::shared_ptr<Outbox> outbox_;
  SessionStream* const stream_;

  // These two are the reader's.
  bool closed_by_trainer_ = false;
  bool detached_ = false;
  absl::Notification read_;
};

}  // namespace

absl::Status ServeSession(ModelStore& store, Callers& callers, grpc::ServerContext& context, SessionStream* stream) {
  ASSIGN_OR_RETURN(const Callers::Caller caller, callers.Authenticate(context));
  ASSIGN_OR_RETURN(const v1::AttachRequest attach, ReadAttach(stream));
  ASSIGN_OR_RETURN(const std::shared_ptr<Model> model, store.Find(attach.model()));
  if (attach.take_over()) RETURN_IF_ERROR(TakeOver(*model, callers, caller, attach.rank()));
  ASSIGN_OR_RETURN(const int64_t session, callers.Open(caller, model, &context));
  const auto outbox = std::make_shared<Outbox>();
  absl::Status status = model->Attach(MakeTrainer(callers, caller, session, attach.rank(), outbox));
  if (status.ok()) {
    // Whoever went between Open and Attach was reported in vain.
    if (const auto present = callers.Authenticate(context); !present.ok()) model->Leave(session, present.status());
    v1::SessionResponse response;
    response.mutable_accepted()->set_session(session);
    for (int rank : model->MissingRanks()) response.mutable_accepted()->add_missing_ranks(rank);
    stream->Write(response);
    status = Conversation(*model, attach, session, caller.peer.pid, outbox, stream).Run(context);
  }
  callers.Close(caller);
  return status;
}

}  // namespace paramshard::server
