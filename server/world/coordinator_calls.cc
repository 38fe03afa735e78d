#include "server/world/coordinator_calls.h"

#include <algorithm>
#include <utility>

#include <grpcpp/grpcpp.h>

#include "absl/strings/str_cat.h"
#include "common/rpc/durations.h"
#include "kernels/base/status_macros.h"
#include "server/base/grpc_deadline.h"
#include "server/base/steady_time.h"
#include "server/world/cluster_messages.h"

namespace paramshard::server {
namespace {

constexpr absl::Duration kFirstBallotPause = absl::Milliseconds(20);
constexpr absl::Duration kLongestBallotPause = absl::Milliseconds(500);
// How long one call that does not wait may take.
constexpr absl::Duration kPutWait = absl::Seconds(5);
// How long one GetValue call waits: a value may take as long as the start of an epoch.
constexpr absl::Duration kValueWait = absl::Seconds(30);
// How much longer a call may take than the wait that it asks for.
constexpr absl::Duration kCallSlack = absl::Seconds(2);

// Returns true if the connection ended before the answer came.
bool IsCutOff(const absl::Status& status) { return absl::IsUnavailable(status) || absl::IsCancelled(status); }

// Returns true if the status is the coordinator's answer to a vote; any other error leaves the node in doubt.
bool IsRefusedVote(const absl::Status& status) {
  return absl::IsAborted(status) || absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status) ||
         absl::IsDataLoss(status);
}

}  // namespace

std::string CoordinatorName(const RemoteOptions& options) {
  return absl::StrCat("node 0 (", options.coordinator_address, ")");
}

CoordinatorCalls::Call::Call(CoordinatorCalls& calls, absl::Duration timeout, const Ballot* ballot) : calls_(calls) {
  if (timeout != absl::InfiniteDuration()) context.set_deadline(GrpcDeadline(timeout));
  absl::MutexLock lock(&calls_.mu_);
  calls_.calls_.emplace(&context, ballot);
  if (calls_.stopped_ || (ballot != nullptr && ballot->forgotten)) context.TryCancel();
}

CoordinatorCalls::Call::~Call() {
  absl::MutexLock lock(&calls_.mu_);
  calls_.calls_.erase(&context);
}

absl::StatusOr<CommitDecision> CoordinatorCalls::Vote(const CommitVote& vote) {
  // A live node 0 answers before the doubt timeout.
  const absl::Duration wait = std::min(kVoteWait, options_.doubt_timeout / 2);
  const v1::VoteRequest request = VoteMessage(options_.node, vote, wait);
  const auto ask = [&](grpc::ClientContext& context) -> absl::StatusOr<std::optional<CommitDecision>> {
    v1::VoteResponse response;
    const SteadyTime begin = SteadyNow();
    RETURN_IF_ERROR(FromGrpcStatus(link()->stub->Vote(&context, request, &response)));
    ObserveRoundTrip(absl::FromChrono(SteadyNow() - begin), response);
    if (!response.has_decision()) return std::nullopt;
    return DecisionOf(response.decision());
  };
  ASSIGN_OR_RETURN(CommitDecision decision, Ask({.model = vote.model, .commit_number = vote.commit_number}, wait, ask));
  if (vote.write_down != nullptr) RETURN_IF_ERROR(vote.write_down(decision));
  return decision;
}

// A message of its own would be one more in each step.
void CoordinatorCalls::ObserveRoundTrip(absl::Duration took, const v1::VoteResponse& response) const {
  if (!response.has_held()) return;
  const absl::Duration underway = std::clamp(took - DurationFromProto(response.held()), absl::ZeroDuration(), took);
  options_.metrics->Observe(Metric::kPeerRoundTrip, absl::ToChronoNanoseconds(underway));
}

absl::StatusOr<CommitDecision> CoordinatorCalls::QueryCommit(const CommitQuery& query) {
  const v1::QueryCommitRequest request = QueryMessage(options_.node, query);
  const auto ask = [&](grpc::ClientContext& context) -> absl::StatusOr<std::optional<CommitDecision>> {
    v1::QueryCommitResponse response;
    RETURN_IF_ERROR(FromGrpcStatus(link()->stub->QueryCommit(&context, request, &response)));
    if (!response.has_decision()) return std::nullopt;
    return DecisionOf(response.decision());
  };
  return Ask({.model = query.model, .commit_number = query.commit_number}, absl::ZeroDuration(), ask);
}

absl::StatusOr<CommitDecision> CoordinatorCalls::Ask(Ballot ballot, absl::Duration wait, AskOnce ask) {
  {
    absl::MutexLock lock(&mu_);
    ballots_.insert(&ballot);
  }
  absl::StatusOr<CommitDecision> decision = Repeat(ballot, wait, ask);
  absl::MutexLock lock(&mu_);
  ballots_.erase(&ballot);
  return decision;
}

absl::StatusOr<CommitDecision> CoordinatorCalls::Repeat(const Ballot& ballot, absl::Duration wait, AskOnce ask) {
  SteadyTime doubt_deadline = SteadyDeadline(options_.doubt_timeout);
  absl::Duration pause = kFirstBallotPause;
  do {
    Call call(*this, std::min(wait + kCallSlack, TimeLeft(doubt_deadline)), &ballot);
    absl::StatusOr<std::optional<CommitDecision>> answer = ask(call.context);
    if (answer.ok() && answer->has_value()) return **std::move(answer);
    if (IsRefusedVote(answer.status())) return answer.status();
    if (answer.ok()) {  // node 0 has answered: it waits for others, and so does the next call
      doubt_deadline = SteadyDeadline(options_.doubt_timeout);
      pause = absl::ZeroDuration();
    } else {
      pause = std::clamp(2 * pause, kFirstBallotPause, kLongestBallotPause);
    }
  } while (SteadyNow() < doubt_deadline && Pause(ballot, std::min(pause, TimeLeft(doubt_deadline))));
  return GivenUpError(ballot);
}

bool CoordinatorCalls::Pause(const Ballot& ballot, absl::Duration pause) {
  const SteadyTime deadline = SteadyDeadline(pause);
  absl::MutexLock lock(&mu_);
  while (!stopped_ && !ballot.forgotten && !changed_.WaitUntil(&mu_, deadline)) {
  }
  return !stopped_ && !ballot.forgotten;
}

absl::Status CoordinatorCalls::GivenUpError(const Ballot& ballot) {
  const std::string operation = absl::StrCat("vote ", ballot.model, " commit ", ballot.commit_number, ": ");
  absl::MutexLock lock(&mu_);
  if (ballot.forgotten) return absl::CancelledError(absl::StrCat(operation, "the model was deleted on this node"));
  if (stopped_) {
    return absl::UnavailableError(
        absl::StrCat(operation, "stopped before ", CoordinatorName(options_), " answered; it is in doubt"));
  }
  return absl::DataLossError(absl::StrCat(operation, "timed out after ", absl::FormatDuration(options_.doubt_timeout),
                                          " waiting for ", CoordinatorName(options_)));
}

absl::Status CoordinatorCalls::Put(const v1::PutValueRequest& request) {
  std::shared_ptr<CoordinatorLink> used;
  absl::Status status;
  do {
    used = link();
    Call call(*this, kPutWait + kCallSlack);
    v1::PutValueResponse response;
    status = FromGrpcStatus(used->stub->PutValue(&call.context, request, &response));
  } while (IsCutOff(status) && link() != used);
  return status;
}

absl::StatusOr<v1::GetValueResponse> CoordinatorCalls::Get(v1::GetValueRequest request, absl::Duration timeout) {
  const SteadyTime deadline = SteadyDeadline(timeout);
  std::shared_ptr<CoordinatorLink> used;
  absl::Status status;
  do {
    used = link();
    const absl::Duration wait = std::min(TimeLeft(deadline), kValueWait);
    *request.mutable_timeout() = DurationToProto(wait);
    Call call(*this, wait + kCallSlack);
    v1::GetValueResponse response;
    status = FromGrpcStatus(used->stub->GetValue(&call.context, request, &response));
    if (status.ok()) return response;
  } while ((absl::IsDeadlineExceeded(status) || (IsCutOff(status) && link() != used)) && SteadyNow() < deadline);
  return status;
}

std::shared_ptr<CoordinatorLink> CoordinatorCalls::link() const {
  absl::MutexLock lock(&mu_);
  return link_;
}

void CoordinatorCalls::SetLink(std::shared_ptr<CoordinatorLink> link) {
  absl::MutexLock lock(&mu_);
  link_ = std::move(link);
}

void CoordinatorCalls::Forget(absl::string_view model) {
  absl::MutexLock lock(&mu_);
  for (Ballot* ballot : ballots_) {
    if (ballot->model == model) ballot->forgotten = true;
  }
  for (const auto& [call, ballot] : calls_) {
    if (ballot != nullptr && ballot->forgotten) call->TryCancel();
  }
  changed_.SignalAll();
}

void CoordinatorCalls::Stop() {
  absl::MutexLock lock(&mu_);
  stopped_ = true;
  for (const auto& [call, ballot] : calls_) call->TryCancel();
  changed_.SignalAll();
}

}  // namespace paramshard::server
