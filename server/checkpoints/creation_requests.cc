#include "server/checkpoints/creation_requests.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/model/names.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

// Largest number of requests that are remembered. Further ones are refused.
constexpr size_t kMaxRequests = 1024;
// Interval in which a creation that waits for node 0 checks whether its caller is still there.
constexpr absl::Duration kLookAfter = absl::Milliseconds(200);
// Interval in which it tells node 0 again that it waits.
constexpr absl::Duration kTellAgainAfter = absl::Seconds(5);

absl::Status HasTrainedError(const std::string& model, int64_t commit_number) {
  return absl::FailedPreconditionError(
      absl::StrCat("create model ", DisplayName(model), ": already exists at node 0, trained to commit ", commit_number,
                   "; delete it at all daemons and create it again, or create it without a restore, and then restore "
                   "it at node 0"));
}

}  // namespace

void CreationRequests::BeginDrain() {
  absl::MutexLock lock(&mu_);
  draining_ = true;
  changed_.SignalAll();
}

void CreationRequests::SignalChanged() {
  absl::MutexLock lock(&mu_);
  changed_.SignalAll();
}

// --- Creations here ---

absl::StatusOr<std::optional<RestoreAnswer>> CreationRequests::Await(const std::string& model, Question is_settled,
                                                                     Question is_gone) {
  absl::MutexLock lock(&mu_);
  Waiting& waiting = waiting_[model];
  if (waiting.callers++ == 0) waiting.request_id = options_.draw_id().value;
  absl::StatusOr<std::optional<RestoreAnswer>> answer = Await(model, waiting, is_settled, is_gone);
  if (--waiting.callers > 0) return answer;
  // Withdraws the request also after an answer, which may have crossed with a repeated request.
  if (waiting.told.has_value()) Tell(model, {.id = waiting.request_id, .withdrawn = true}).IgnoreError();
  waiting_.erase(model);
  return answer;
}

absl::StatusOr<std::optional<RestoreAnswer>> CreationRequests::Await(const std::string& model, Waiting& waiting,
                                                                     Question is_settled, Question is_gone) {
  const SteadyTime deadline = After(options_.clock->Now(), options_.timeout);
  while (true) {
    if (draining_) return DrainError();
    if (is_settled()) return std::nullopt;
    if (waiting.answer.has_value()) {
      RETURN_IF_ERROR(waiting.answer->status);
      return waiting.answer;
    }
    // The answer may come before this call waits.
    RETURN_IF_ERROR(TellRequest(model, waiting));
    if (is_gone()) {
      return absl::AbortedError(absl::StrCat("create model ", DisplayName(model), ": the caller disconnected"));
    }
    const absl::Duration left = Until(deadline, options_.clock->Now());
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(absl::StrCat(
          "create model ", DisplayName(model), ": timed out after ", absl::FormatDuration(options_.timeout),
          ": node 0 has not chosen a checkpoint, because its trainers have not created the model"));
    }
    changed_.WaitUntil(&mu_, After(SteadyNow(), std::min(left, kLookAfter)));
  }
}

absl::Status CreationRequests::TellRequest(const std::string& model, Waiting& waiting) {
  const SteadyTime now = options_.clock->Now();
  if (waiting.told.has_value() && now < After(*waiting.told, kTellAgainAfter)) return absl::OkStatus();
  waiting.told = now;
  return Tell(model, {.id = waiting.request_id});
}

absl::Status CreationRequests::Tell(const std::string& model, RestoreRequest request) const {
  return options_.store->world().cluster->Send(RestoreMessage{.model = model, .what = request});
}

void CreationRequests::OnAnswer(const std::string& model, const RestoreAnswer& answer) {
  absl::MutexLock lock(&mu_);
  const auto waiting = waiting_.find(model);
  if (waiting == waiting_.end() || waiting->second.request_id != answer.id) return;
  waiting->second.answer = answer;
  changed_.SignalAll();
}

void CreationRequests::OnLeaderLost(const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  for (auto& [model, waiting] : waiting_) waiting.answer = RestoreAnswer{.status = why};
  changed_.SignalAll();
}

// --- Creations at other nodes ---

void CreationRequests::OnRequest(const std::string& model, const RestoreRequest& request) {
  absl::MutexLock lock(&mu_);
  const RequestKey known(model, request.node);
  if (request.withdrawn) {
    // A later request of that node stays.
    if (const auto found = requests_.find(known); found != requests_.end() && found->second == request.id) {
      requests_.erase(found);
    }
    return;
  }
  if (requests_.size() >= kMaxRequests && !requests_.contains(known)) {
    return TellAnswer(model, request.id,
                      {.status = absl::ResourceExhaustedError("node 0: too many creations are waiting")});
  }
  const std::optional<RestoreAnswer> answer = AnswerFor(model);
  if (answer.has_value()) return TellAnswer(model, request.id, *answer);
  requests_[known] = request.id;
}

void CreationRequests::OnFollowerLost(int node) {
  absl::MutexLock lock(&mu_);
  std::erase_if(requests_, [node](const auto& request) { return request.first.second == node; });
}

std::optional<RestoreAnswer> CreationRequests::AnswerFor(const std::string& name) const {
  const auto model = options_.store->Find(name);
  if (!model.ok()) return std::nullopt;
  const absl::StatusOr<StateSnapshot> state = (*model)->state().Look("restore");
  // A restore in progress orders its checkpoint everywhere; after any other change the request comes again.
  if (absl::IsUnavailable(state.status())) return std::nullopt;
  if (state.ok() && (*model)->state().fresh()) return RestoreAnswer();
  // The model has trained, and the waiting node has lost its part. A replica heals it; else an order or a refusal
  // follows.
  if (state.ok() && (*model)->topology().has_replicas()) return RestoreAnswer{.heals = true};
  options_.roll_back(name, state.ok() ? HasTrainedError(name, state->numbers.commit_number) : state.status());
  return std::nullopt;
}

void CreationRequests::Answer(const std::string& model, const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  std::erase_if(requests_, [&](const auto& request) {
    if (request.first.first != model) return false;
    TellAnswer(model, request.second, {.status = status});
    return true;
  });
}

void CreationRequests::TellAnswer(const std::string& model, absl::uint128 request_id, RestoreAnswer answer) const {
  answer.id = request_id;
  options_.store->world().cluster->Send(RestoreMessage{.model = model, .what = std::move(answer)}).IgnoreError();
}

}  // namespace paramshard::server
