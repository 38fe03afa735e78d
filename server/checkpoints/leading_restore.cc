#include "server/checkpoints/leading_restore.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/model/names.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

// Prefixes another daemon's error with its node, and limits its length.
absl::Status OfNode(int node, const absl::Status& status) {
  constexpr size_t kMostBytes = 1024;
  return absl::Status(status.code(), absl::StrCat("node ", node, ": ", status.message().substr(0, kMostBytes)));
}

// Largest part of a daemon that is accepted: the parts of all daemons can be added.
constexpr int64_t kMostPartBytes = int64_t{1} << 48;

// Interval in which a restore that waits for other daemons checks whether a caller still waits for it.
constexpr absl::Duration kLookAfter = absl::Milliseconds(200);

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
  return static_cast<int>(phase) == (reached.has_value() ? static_cast<int>(*reached) + 1 : 0);
}

}  // namespace

// --- What other daemons say ---

void LeadingRestore::OnReport(const RestoreReport& report) {
  if (report.id != id()) return;
  absl::MutexLock lock(&mu_);
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

void LeadingRestore::OnSums(const RestoreSums& sums) {
  if (sums.id != id()) return;
  absl::MutexLock lock(&mu_);
  Peer& peer = peers_[sums.node];
  if (!peer.status.ok()) return;
  const bool is_expected = allowed_ == RestorePhase::kWritten && peer.reached == RestorePhase::kReady;
  peer.status = is_expected ? AddSums(sums) : absl::InvalidArgumentError("sums out of order");
  SignalChanged();
}

void LeadingRestore::OnProgress(const RestorePartProgress& progress) {
  if (progress.id != id()) return;
  absl::MutexLock lock(&mu_);
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

Restorer::Progress LeadingRestore::Whole(const Restorer::Progress& own) const {
  absl::MutexLock lock(&mu_);
  Restorer::Progress whole = own;
  for (const auto& [node, peer] : peers_) {
    whole.done_bytes += peer.progress.done_bytes;
    whole.all_bytes += peer.progress.all_bytes;
  }
  return whole;
}

absl::Status LeadingRestore::AddSums(const RestoreSums& sums) {
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

// --- What the restore waits for ---

template <typename News>
absl::Status LeadingRestore::Tell(const News& news) {
  return options_.cluster->TellRestore({.model = options_.model, .what = news});
}

void LeadingRestore::Allow(RestorePhase phase) {
  absl::MutexLock lock(&mu_);
  allowed_ = phase;
}

// Each node holds equally many replicas, also if only some nodes take part.
int LeadingRestore::Replicas() const {
  return options_.replicas * static_cast<int>(nodes_.size()) / options_.cluster->nodes();
}

absl::Status LeadingRestore::FirstFailure() const {
  if (cancelled_) return absl::CancelledError("the daemon drains");
  for (const auto& [node, peer] : peers_) {
    if (!peer.status.ok()) return OfNode(node, peer.status);
  }
  return absl::OkStatus();
}

void LeadingRestore::SignalChanged() {
  if (const absl::Status why = FirstFailure(); !why.ok()) write_.Stop(why);
  changed_.SignalAll();
}

std::optional<absl::Status> LeadingRestore::Reached(RestorePhase phase) const {
  RETURN_IF_ERROR(FirstFailure());
  for (const int node : nodes_) {
    if (node == 0) continue;
    const auto peer = peers_.find(node);
    if (peer == peers_.end() || !peer->second.reached.has_value() || *peer->second.reached < phase) return std::nullopt;
  }
  return absl::OkStatus();
}

// Trainers of other daemons get this error too: they are still there.
absl::Status LeadingRestore::AbandonedError() const {
  return absl::UnavailableError(
      absl::StrCat("create model ", DisplayName(options_.model), ": all callers have gone; try again"));
}

absl::Status LeadingRestore::LateError(RestorePhase phase) const {
  std::vector<int> late;
  for (const int node : nodes_) {
    if (node == 0) continue;
    const auto peer = peers_.find(node);
    if (peer == peers_.end() || !peer->second.reached.has_value() || *peer->second.reached < phase)
      late.push_back(node);
  }
  return absl::DeadlineExceededError(absl::StrCat("restore ", options_.model, ": timed out: node ",
                                                  absl::StrJoin(late, ", "), " is not ", PhaseText(phase)));
}

absl::Status LeadingRestore::Await(RestorePhase phase, SteadyTime deadline) {
  absl::MutexLock lock(&mu_);
  while (true) {
    if (const std::optional<absl::Status> reached = Reached(phase); reached.has_value()) return *reached;
    const absl::Duration left = Until(deadline, options_.clock->Now());
    if (left <= absl::ZeroDuration()) return LateError(phase);
    if (phase == RestorePhase::kReady && options_.is_abandoned()) return AbandonedError();
    changed_.WaitUntil(&mu_, After(SteadyNow(), std::min(left, kLookAfter)));
  }
}

absl::Status LeadingRestore::Begin() {
  RestoreOrder order = options_.order;
  order.timeout = Until(options_.deadline, options_.clock->Now());
  Allow(RestorePhase::kReady);
  RETURN_IF_ERROR(Tell(order));
  ordered_ = true;
  {
    absl::MutexLock lock(&mu_);
    nodes_ = options_.cluster->restored_nodes(options_.model, id());
  }
  RETURN_IF_ERROR(Await(RestorePhase::kReady));
  options_.before_go();
  // If a daemon is lost by now, it has changed nothing, and no daemon begins.
  RETURN_IF_ERROR(Await(RestorePhase::kReady));
  Allow(RestorePhase::kWritten);
  // If nodes are away, node 0 writes that down first; on an error no daemon is told to go.
  RETURN_IF_ERROR(Tell(RestoreGo{.id = id()}));
  gone_ = true;
  return absl::OkStatus();
}

absl::Status LeadingRestore::LateWriteError() const {
  return absl::DeadlineExceededError(
      absl::StrCat("restore ", options_.model, ": timed out: node 0 is not ", PhaseText(RestorePhase::kWritten)));
}

absl::Status LeadingRestore::Write(Restorer& restorer) {
  return write_.Run(
      restorer, [] {}, LateWriteError());
}

absl::Status LeadingRestore::CheckGoesOn() { return write_.CheckGoesOn(LateWriteError()); }

absl::Status LeadingRestore::Conclude(const Restorer& restorer) {
  options_.before_written();
  RETURN_IF_ERROR(Await(RestorePhase::kWritten));
  checkpoint::ContentHashes sums = restorer.content();
  int replicas = 0;
  {
    absl::MutexLock lock(&mu_);
    replicas = Replicas();
    for (const auto& [key, sum] : sums_) sums[key] += sum;
  }
  RETURN_IF_ERROR(restorer.Check(sums, replicas));
  options_.before_end();
  RETURN_IF_ERROR(Await(RestorePhase::kWritten));
  Allow(RestorePhase::kDone);
  RETURN_IF_ERROR(Tell(RestoreEnd{.id = id()}));
  ended_ = true;
  // The others have a whole state from here on: a deadline that passes just now must not leave one without.
  return Await(RestorePhase::kDone, std::max(options_.deadline, After(options_.clock->Now(), kLeastWaitForDone)));
}

void LeadingRestore::Finish(const absl::Status& status) {
  if (!ordered_ || ended_) return;
  // A node that this does not reach notices the end by itself.
  Tell(RestoreEnd{.id = id(), .status = status.ok() ? absl::InternalError("no end was told") : status}).IgnoreError();
}

void LeadingRestore::Cancel() {
  absl::MutexLock lock(&mu_);
  cancelled_ = true;
  SignalChanged();
}

}  // namespace paramshard::server
