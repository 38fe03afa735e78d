#include "server/checkpoints/restore_agreement.h"

#include <algorithm>
#include <thread>
#include <type_traits>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/model/names.h"
#include "kernels/base/status_macros.h"
#include "server/base/thread.h"
#include "server/checkpoints/node_error.h"

namespace paramshard::server {
namespace {

// Largest part of a daemon that is accepted: the parts of all daemons can be added.
constexpr int64_t kMostPartBytes = int64_t{1} << 48;
// Largest number of sums in one message: a tensor's name has at most a few hundred bytes.
constexpr size_t kSumsOfMessage = 1000;
// Interval in which a creation that waits for other daemons checks whether a caller still waits for it: callers that go
// wake nobody.
constexpr absl::Duration kLookAfter = absl::Milliseconds(200);
constexpr absl::Duration kWatchInterval = absl::Milliseconds(250);
// Shortest wait for the last reports, which cannot fail any more.
constexpr absl::Duration kLeastWaitForDone = absl::Seconds(30);

absl::string_view PhaseText(RestorePhase phase) {
  switch (phase) {
    case RestorePhase::kReady:
      return "ready to begin";
    case RestorePhase::kWritten:
      return "done with its rows";
    case RestorePhase::kDone:
      break;
  }
  return "in the new history";
}

bool IsNext(std::optional<RestorePhase> reached, RestorePhase phase) {
  if (!reached.has_value()) return phase == RestorePhase::kReady;
  return static_cast<int>(phase) == static_cast<int>(*reached) + 1;
}

}  // namespace

std::optional<HistoryId> RestoreAgreement::history() const {
  if (options_.role == Role::kAlone) return std::nullopt;
  return HistoryId{order().id};
}

std::string RestoreAgreement::RollbackWhy(const Model& model) const {
  // Also a rollback if node 0 creates a model that exists here and has changed since its creation.
  const bool replaces = leader_creates() && !model.state().fresh();
  if (order().rolls_back() || !replaces) return order().rollback_why;
  return "node 0 has no state of the model, and creates it from a checkpoint";
}

// --- Steps ---

absl::Status RestoreAgreement::Agree() {
  switch (options_.role) {
    case Role::kAlone:
      break;
    case Role::kLeader:
      return Lead();
    case Role::kFollower:
      return Follow();
  }
  return absl::OkStatus();
}

absl::Status RestoreAgreement::Lead() {
  RestoreOrder order = options_.order;
  order.timeout = Until(options_.deadline, options_.clock->Now());
  Allow(RestorePhase::kReady);
  RETURN_IF_ERROR(Tell(order));
  ordered_ = true;
  {
    absl::MutexLock lock(&mu_);
    nodes_ = options_.cluster->restored_nodes(model(), order.id);
  }
  RETURN_IF_ERROR(Await(RestorePhase::kReady, options_.deadline));
  options_.at(Point::kGo);
  // If a daemon is lost by now, it has changed nothing, and no daemon begins.
  RETURN_IF_ERROR(Await(RestorePhase::kReady, options_.deadline));
  Allow(RestorePhase::kWritten);
  // If nodes are away, node 0 writes that down first; on an error no daemon is told to go.
  RETURN_IF_ERROR(Tell(RestoreGo{.id = order.id}));
  gone_ = true;
  return absl::OkStatus();
}

absl::Status RestoreAgreement::Follow() {
  options_.at(Point::kReady);
  // A report that this node is ready is a promise: it is not sent when the restore is given up.
  RETURN_IF_ERROR(failure());
  Report(RestorePhase::kReady);
  return Await(RestorePhase::kReady, options_.deadline);
}

absl::Status RestoreAgreement::Load(CheckpointLoader& loader) {
  if (options_.role == Role::kAlone) return loader.Load();
  {
    absl::MutexLock lock(&mu_);
    loading_ = &loader;
    if (!stopped_.ok()) loader.Cancel();
  }
  // If no thread can be started, loading goes on without it: the waits before and after it still have the deadline.
  absl::StatusOr<std::thread> watch = StartThread("the watch over a restore", [&] { Watch(loader); });
  options_.at(Point::kRows);
  const absl::Status status = loader.Load();
  absl::Status stopped;
  {
    absl::MutexLock lock(&mu_);
    loading_ = nullptr;
    stopped = stopped_;
    changed_.SignalAll();
  }
  if (watch.ok()) watch->join();
  TellProgress(loader);
  return absl::IsCancelled(status) && !stopped.ok() ? stopped : status;
}

void RestoreAgreement::Watch(const CheckpointLoader& loader) {
  while (true) {
    TellProgress(loader);
    const SteadyTime next = SteadyDeadline(kWatchInterval);
    absl::MutexLock lock(&mu_);
    StopIfLate();
    while (loading_ != nullptr && !changed_.WaitUntil(&mu_, next)) {
    }
    if (loading_ == nullptr) return;
  }
}

absl::Status RestoreAgreement::CheckContinue() {
  options_.at(Point::kPlanes);
  absl::MutexLock lock(&mu_);
  StopIfLate();
  return stopped_;
}

absl::Status RestoreAgreement::Verify(const CheckpointLoader& loader) {
  if (options_.role == Role::kAlone) return loader.Check(loader.content(), options_.replicas);
  options_.at(Point::kWritten);
  if (options_.role == Role::kFollower) {
    TellSums(loader.content());
    Report(RestorePhase::kWritten);
    return Await(RestorePhase::kWritten, options_.deadline);
  }
  RETURN_IF_ERROR(Await(RestorePhase::kWritten, options_.deadline));
  checkpoint::ContentHashes sums = loader.content();
  int replicas = 0;
  {
    absl::MutexLock lock(&mu_);
    replicas = Replicas();
    for (const auto& [key, sum] : sums_) sums[key] += sum;
  }
  RETURN_IF_ERROR(loader.Check(sums, replicas));
  options_.at(Point::kEnd);
  RETURN_IF_ERROR(Await(RestorePhase::kWritten, options_.deadline));
  Allow(RestorePhase::kDone);
  RETURN_IF_ERROR(Tell(RestoreEnd{.id = order().id}));
  ended_ = true;
  // The others have a whole state from here on: a deadline that passes just now must not leave one without.
  return Await(RestorePhase::kDone, std::max(options_.deadline, After(options_.clock->Now(), kLeastWaitForDone)));
}

void RestoreAgreement::Finish(const absl::Status& status) {
  if (options_.role == Role::kFollower) return Report(RestorePhase::kDone, status);
  if (!ordered_ || ended_) return;
  // A node that this does not reach notices the end by itself.
  const absl::Status why = status.ok() ? absl::InternalError("the restore ended without a result") : status;
  Tell(RestoreEnd{.id = order().id, .status = why}).IgnoreError();
}

// --- Messages to other daemons ---

template <typename Message>
absl::Status RestoreAgreement::Tell(const Message& message) {
  return options_.cluster->Send(RestoreMessage{.model = model(), .what = message});
}

void RestoreAgreement::Report(RestorePhase phase, const absl::Status& status) {
  // If this does not reach node 0, node 0 has lost this node, and with it the restore.
  Tell(RestoreReport{.id = order().id, .phase = phase, .status = status}).IgnoreError();
}

void RestoreAgreement::TellProgress(const CheckpointLoader& loader) {
  if (options_.role != Role::kFollower) return;
  const CheckpointLoader::Progress progress = loader.progress();
  Tell(RestorePartProgress{.id = order().id, .done_bytes = progress.done_bytes, .all_bytes = progress.all_bytes})
      .IgnoreError();
}

void RestoreAgreement::TellSums(const checkpoint::ContentHashes& sums) {
  RestoreSums message{.id = order().id};
  const auto tell = [&] {
    Tell(message).IgnoreError();
    message.tensors.clear();
  };
  for (const auto& [key, sum] : sums) {
    message.tensors.push_back({.key = key, .sum = sum.sum, .rows = sum.rows});
    if (message.tensors.size() == kSumsOfMessage) tell();
  }
  if (!message.tensors.empty()) tell();
}

// --- Messages from other daemons ---

void RestoreAgreement::OnMessage(const RestoreMessage& message) {
  absl::MutexLock lock(&mu_);
  std::visit(
      [this](const auto& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        using Message = std::decay_t<decltype(what)>;
        constexpr bool kFromLeader = std::is_same_v<Message, RestoreGo> || std::is_same_v<Message, RestoreEnd>;
        constexpr bool kFromFollower = std::is_same_v<Message, RestoreReport> || std::is_same_v<Message, RestoreSums> ||
                                       std::is_same_v<Message, RestorePartProgress>;
        if constexpr (kFromLeader || kFromFollower) {
          const Role takes = kFromLeader ? Role::kFollower : Role::kLeader;
          if (what.id == order().id && options_.role == takes) Take(what);
        }
      },
      message.what);
}

void RestoreAgreement::Take(const RestoreGo&) {
  may_begin_ = true;
  SignalChanged();
}

void RestoreAgreement::Take(const RestoreEnd& end) {
  if (!end_.has_value()) end_ = end.status;
  SignalChanged();
}

void RestoreAgreement::Take(const RestoreReport& report) {
  Peer& peer = peers_[report.node];
  if (!peer.status.ok()) return;
  if (!report.status.ok()) {
    peer.status = report.status;
  } else if (!IsNext(peer.reached, report.phase) || !allowed_.has_value() || report.phase > *allowed_) {
    peer.status = absl::InvalidArgumentError(absl::StrCat("report out of order: ", PhaseText(report.phase)));
  } else {
    peer.reached = report.phase;
  }
  SignalChanged();
}

void RestoreAgreement::Take(const RestoreSums& sums) {
  Peer& peer = peers_[sums.node];
  if (!peer.status.ok()) return;
  const bool is_expected = allowed_ == RestorePhase::kWritten && peer.reached == RestorePhase::kReady;
  peer.status = is_expected ? AddSums(sums) : absl::InvalidArgumentError("sums out of order");
  SignalChanged();
}

absl::Status RestoreAgreement::AddSums(const RestoreSums& sums) {
  for (const RestoreSums::Tensor& tensor : sums.tensors) {
    const auto saved = options_.saved.find(tensor.key);
    if (saved == options_.saved.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", DisplayName(tensor.key), ": not found in the checkpoint"));
    }
    checkpoint::ContentHash& sum = sums_[tensor.key];
    const int64_t most = saved->second.rows * Replicas();
    if (tensor.rows < 0 || tensor.rows > most - sum.rows) {
      return absl::InvalidArgumentError(absl::StrCat("want at most ", most, " rows of ", DisplayName(tensor.key),
                                                     " in all replicas, got ", tensor.rows, " in addition to ",
                                                     sum.rows));
    }
    sum += {.sum = tensor.sum, .rows = tensor.rows};
  }
  return absl::OkStatus();
}

// Each node holds equally many replicas, also if only some nodes take part.
int RestoreAgreement::Replicas() const {
  return options_.replicas * static_cast<int>(nodes_.size()) / options_.cluster->nodes();
}

void RestoreAgreement::Take(const RestorePartProgress& progress) {
  Peer& peer = peers_[progress.node];
  if (!peer.status.ok()) return;
  if (0 <= progress.done_bytes && progress.done_bytes <= progress.all_bytes && progress.all_bytes <= kMostPartBytes) {
    peer.progress = {.done_bytes = progress.done_bytes, .all_bytes = progress.all_bytes};
    return;
  }
  peer.status = absl::InvalidArgumentError(absl::StrCat("want progress of at most ", kMostPartBytes, " bytes, got ",
                                                        progress.done_bytes, " of ", progress.all_bytes));
  SignalChanged();
}

CheckpointLoader::Progress RestoreAgreement::Whole(CheckpointLoader::Progress own) const {
  absl::MutexLock lock(&mu_);
  for (const auto& [node, peer] : peers_) {
    own.done_bytes += peer.progress.done_bytes;
    own.all_bytes += peer.progress.all_bytes;
  }
  return own;
}

// --- Waits ---

void RestoreAgreement::Allow(RestorePhase phase) {
  absl::MutexLock lock(&mu_);
  allowed_ = phase;
}

absl::Status RestoreAgreement::Await(RestorePhase phase, SteadyTime deadline) {
  const bool may_be_abandoned = phase == RestorePhase::kReady && options_.is_abandoned != nullptr;
  absl::MutexLock lock(&mu_);
  while (true) {
    RETURN_IF_ERROR(Failure());
    if (IsReached(phase)) return absl::OkStatus();
    const absl::Duration left = Until(deadline, options_.clock->Now());
    if (left <= absl::ZeroDuration()) return LateError(phase);
    if (may_be_abandoned && options_.is_abandoned()) {
      // Trainers of other daemons get this error too: they are still there.
      return absl::UnavailableError(
          absl::StrCat("create model ", DisplayName(model()), ": every caller disconnected; try again"));
    }
    changed_.WaitUntil(&mu_, After(SteadyNow(), may_be_abandoned ? std::min(left, kLookAfter) : left));
  }
}

bool RestoreAgreement::IsReached(RestorePhase phase) const {
  if (options_.role == Role::kLeader) return Behind(phase).empty();
  return phase == RestorePhase::kReady ? may_begin_ : end_.has_value();
}

std::vector<int> RestoreAgreement::Behind(RestorePhase phase) const {
  std::vector<int> behind;
  for (const int node : nodes_) {
    const auto peer = peers_.find(node);
    const bool is_there = peer != peers_.end() && peer->second.reached.has_value() && *peer->second.reached >= phase;
    if (node != 0 && !is_there) behind.push_back(node);
  }
  return behind;
}

absl::Status RestoreAgreement::failure() const {
  absl::MutexLock lock(&mu_);
  return Failure();
}

absl::Status RestoreAgreement::Failure() const {
  if (cancelled_) return absl::CancelledError("the daemon drains");
  if (end_.has_value() && !end_->ok()) return OfNode(0, *end_);
  for (const auto& [node, peer] : peers_) {
    if (!peer.status.ok()) return OfNode(node, peer.status);
  }
  return absl::OkStatus();
}

void RestoreAgreement::Cancel() {
  absl::MutexLock lock(&mu_);
  cancelled_ = true;
  SignalChanged();
}

void RestoreAgreement::SignalChanged() {
  StopFor(Failure());
  changed_.SignalAll();
}

void RestoreAgreement::StopFor(const absl::Status& why) {
  if (why.ok() || !stopped_.ok()) return;
  stopped_ = why;
  if (loading_ != nullptr) loading_->Cancel();
}

void RestoreAgreement::StopIfLate() {
  if (options_.clock->Now() < options_.deadline) return;
  StopFor(absl::DeadlineExceededError(absl::StrCat("restore ", model(), ": timed out: ",
                                                   options_.role == Role::kFollower
                                                       ? "this daemon has not written all rows before node 0's deadline"
                                                       : "node 0 is not done with its rows")));
}

absl::Status RestoreAgreement::LateError(RestorePhase phase) const {
  return absl::DeadlineExceededError(
      absl::StrCat("restore ", model(), ": timed out: ",
                   options_.role == Role::kFollower
                       ? std::string("no answer from node 0 before its deadline")
                       : absl::StrCat("node ", absl::StrJoin(Behind(phase), ", "), " is not ", PhaseText(phase))));
}

}  // namespace paramshard::server
