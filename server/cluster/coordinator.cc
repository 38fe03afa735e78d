#include "server/cluster/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"
#include "server/base/steady_time.h"

namespace paramshard::server {
namespace {

absl::Status StoppedError() { return absl::UnavailableError("cluster: stopped, the daemon drains"); }

absl::Status EpochOverError(absl::string_view model, int64_t epoch) {
  return absl::AbortedError(absl::StrCat("epoch ", epoch, " of ", model, ": over"));
}

// The epoch is one of a coordinator or a model that is gone, and so are its decisions.
absl::Status InDoubtError(const CommitVote& vote) {
  return absl::DataLossError(
      absl::StrCat("vote ", vote.model, " commit ", vote.commit_number, ": epoch ", vote.epoch,
                   " is unknown to node 0, which was restarted or has deleted the model; whether "
                   "the commit was applied elsewhere cannot be learnt: import the model anew"));
}

absl::Status UndecidedError(const CommitVote& vote, const absl::Status& why) {
  return absl::AbortedError(absl::StrCat("vote ", vote.model, " commit ", vote.commit_number, ": epoch ", vote.epoch,
                                         " ended before the decision: ", why.message()));
}

absl::Status NodeLostError(const std::string& node, const std::string& model) {
  return absl::UnavailableError(absl::StrCat(
      node, " lost: its shards of ", model, " are gone unless exported; start its daemon again, import, attach again"));
}

absl::Status SpecsDifferError(const std::string& model, const std::string& node, const ModelReport& report,
                              const std::string& other, const ModelReport& other_report) {
  return absl::FailedPreconditionError(
      absl::StrFormat("start epoch of %s: one spec on all nodes expected, got fingerprint %016x on "
                      "%s, %016x on %s: delete the model on "
                      "one of them and create it with the other's spec",
                      model, report.spec_fingerprint, node, other_report.spec_fingerprint, other));
}

absl::Status StatesDifferError(const std::string& model, const std::string& node, const ModelReport& report,
                               const std::string& other, const ModelReport& other_report) {
  return absl::FailedPreconditionError(
      absl::StrCat("start epoch of ", model, ": one state on all nodes expected, got version ", report.version,
                   " (commit ", report.commit_number, ") on ", node, ", version ", other_report.version, " (commit ",
                   other_report.commit_number, ") on ", other, ": export from one and import to the other"));
}

bool Attaches(const ModelReport& report, RankRange ranks) {
  for (int rank = ranks.begin; rank < ranks.end; ++rank) {
    if (std::find(report.attached_ranks.begin(), report.attached_ranks.end(), rank) == report.attached_ranks.end()) {
      return false;
    }
  }
  return true;
}

void ForgetAttached(std::vector<std::optional<ModelReport>>& reports) {
  for (std::optional<ModelReport>& report : reports) {
    if (report.has_value()) report->attached_ranks.clear();
  }
}

}  // namespace

// Membership.

absl::Status Coordinator::Join(int node, int device_count, NodeSink* sink) {
  std::lock_guard<std::mutex> lock(mu_);
  if (stopped_) return StoppedError();
  RETURN_IF_ERROR(members_.Join(node, device_count));
  sinks_[node] = sink;
  TellAll([&](NodeSink& other) { other.OnWorld(members_.device_counts()); });
  for (auto& [name, model] : models_) TryStart(name, model);
  changed_.notify_all();
  return absl::OkStatus();
}

void Coordinator::Leave(int node) {
  std::lock_guard<std::mutex> lock(mu_);
  if (!members_.present(node)) return;
  members_.Leave(node);
  sinks_[node] = nullptr;
  TellAll([&](NodeSink& other) { other.OnWorld(members_.device_counts()); });
  for (auto& [name, model] : models_) {
    model.reports[node].reset();
    if (model.running) End(name, model, NodeLostError(NodeName(members_, node), name));
  }
  changed_.notify_all();
}

std::vector<int> Coordinator::device_counts() const {
  std::lock_guard<std::mutex> lock(mu_);
  return members_.device_counts();
}

absl::Status Coordinator::AwaitWorld(absl::Duration timeout) {
  std::unique_lock<std::mutex> lock(mu_);
  const bool done = Await(lock, absl::Now() + timeout, [&] { return stopped_ || members_.sized(); });
  if (stopped_) return StoppedError();
  if (done) return absl::OkStatus();
  return MissingNodesError(members_.device_counts(), timeout);
}

// Epochs.

void Coordinator::Report(int node, const ModelReport& report) {
  std::lock_guard<std::mutex> lock(mu_);
  if (stopped_ || !members_.present(node)) return;
  auto [it, added] = models_.try_emplace(report.model, members_.nodes());
  if (added) it->second.last_epoch = it->second.epoch_floor = forgotten_epoch_;
  it->second.reports[node] = report;
  TryStart(it->first, it->second);
}

void Coordinator::Forget(int node, absl::string_view name) {
  std::lock_guard<std::mutex> lock(mu_);
  Model* const model = Find(name);
  if (model == nullptr) return;
  model->reports[node].reset();
  if (model->running) {
    End(std::string(name), *model,
        absl::AbortedError(absl::StrCat("model ", name, ": deleted on ", NodeName(members_, node))));
  }
  EraseIfForgotten(name);
}

void Coordinator::EraseIfForgotten(absl::string_view name) {
  const auto it = models_.find(name);
  for (const std::optional<ModelReport>& report : it->second.reports) {
    if (report.has_value()) return;
  }
  forgotten_epoch_ = std::max(forgotten_epoch_, it->second.last_epoch);
  models_.erase(it);
}

void Coordinator::EndEpoch(absl::string_view name, int64_t epoch, const absl::Status& why) {
  std::lock_guard<std::mutex> lock(mu_);
  if (Model* const model = FindRunning(name, epoch); model != nullptr) End(std::string(name), *model, why);
}

void Coordinator::ReportCommand(int node, absl::string_view name, int64_t epoch, int64_t number, int rank,
                                absl::string_view command) {
  std::lock_guard<std::mutex> lock(mu_);
  if (members_.nodes() == 1) return;
  Model* const model = FindRunning(name, epoch);
  if (model == nullptr) return;
  if (absl::Status status = model->commands.Add(node, number, rank, command); !status.ok()) {
    End(std::string(name), *model, status);
  }
}

Coordinator::Model* Coordinator::Find(absl::string_view name) {
  const auto it = models_.find(name);
  return it == models_.end() ? nullptr : &it->second;
}

Coordinator::Model* Coordinator::FindRunning(absl::string_view name, int64_t epoch) {
  Model* const model = Find(name);
  return model != nullptr && model->running && model->last_epoch == epoch ? model : nullptr;
}

bool Coordinator::AllAttached(const Model& model) const {
  for (int node = 0; node < members_.nodes(); ++node) {
    const std::optional<ModelReport>& report = model.reports[node];
    if (!report.has_value() || !Attaches(*report, members_.ranks(node))) return false;
  }
  return true;
}

absl::Status Coordinator::CheckEqual(const std::string& name, const Model& model) const {
  const ModelReport& first = *model.reports[0];
  for (int node = 1; node < members_.nodes(); ++node) {
    const ModelReport& report = *model.reports[node];
    if (report.spec_fingerprint != first.spec_fingerprint) {
      return SpecsDifferError(name, NodeName(members_, 0), first, NodeName(members_, node), report);
    }
    if (report.commit_number != first.commit_number || report.version != first.version) {
      return StatesDifferError(name, NodeName(members_, 0), first, NodeName(members_, node), report);
    }
  }
  return absl::OkStatus();
}

void Coordinator::TryStart(const std::string& name, Model& model) {
  if (model.running || !members_.complete() || !AllAttached(model)) return;
  if (absl::Status differ = CheckEqual(name, model); !differ.ok()) {
    RefuseStart(name, model, differ);
  } else {
    Start(name, model);
  }
}

void Coordinator::Start(const std::string& name, Model& model) {
  ++model.last_epoch;
  model.running = true;
  model.book.StartEpoch(model.reports[0]->commit_number);
  model.commands = CommandLedger(members_.nodes());
  ForgetAttached(model.reports);
  TellAll([&](NodeSink& sink) { sink.OnEpochStart(name, model.last_epoch); });
}

void Coordinator::End(const std::string& name, Model& model, const absl::Status& why, bool by_votes) {
  model.running = false;
  model.last_end = {model.last_epoch, why, by_votes};
  model.book.EndEpoch();
  model.values.clear();
  ForgetAttached(model.reports);
  TellAll([&](NodeSink& sink) { sink.OnEpochEnd(name, model.last_epoch, why); });
  changed_.notify_all();
}

void Coordinator::RefuseStart(const std::string& name, Model& model, const absl::Status& why) {
  ForgetAttached(model.reports);
  TellAll([&](NodeSink& sink) { sink.OnEpochEnd(name, 0, why); });
}

template <typename Call>
void Coordinator::TellAll(Call call) {
  for (NodeSink* const sink : sinks_) {
    if (sink != nullptr) call(*sink);
  }
}

// Commits.

absl::StatusOr<CommitDecision> Coordinator::Vote(int node, const CommitVote& vote, absl::Time deadline) {
  std::unique_lock<std::mutex> lock(mu_);
  std::optional<absl::StatusOr<CommitDecision>> answer = Answer(vote);
  if (!answer.has_value()) {
    RETURN_IF_ERROR(CastVote(node, vote));
    Await(lock, deadline, [&] { return (answer = Answer(vote)).has_value(); });
  }
  if (answer.has_value()) return *std::move(answer);
  return absl::DeadlineExceededError(
      absl::StrCat("vote ", vote.model, " commit ", vote.commit_number, ": other nodes have not voted yet"));
}

absl::Status Coordinator::CastVote(int node, const CommitVote& vote) {
  Model& model = *Find(vote.model);
  absl::Status status = model.book.Add(members_, node, vote);
  if (absl::IsFailedPrecondition(status)) End(vote.model, model, status, /*by_votes=*/true);
  if (status.ok()) changed_.notify_all();
  return status;
}

std::optional<absl::StatusOr<CommitDecision>> Coordinator::Answer(const CommitVote& vote) {
  if (stopped_) return StoppedError();
  const Model* const model = Find(vote.model);
  if (model == nullptr || vote.epoch <= model->epoch_floor || vote.epoch > model->last_epoch) return InDoubtError(vote);
  if (std::optional<CommitDecision> decision = model->book.Find(vote.epoch, vote.commit_number)) return *decision;
  if (model->running && model->last_epoch == vote.epoch) return std::nullopt;
  if (model->last_end.epoch != vote.epoch) return EpochOverError(vote.model, vote.epoch);
  return model->last_end.by_votes ? model->last_end.why : UndecidedError(vote, model->last_end.why);
}

// Rendezvous.

absl::Status Coordinator::Put(absl::string_view name, int64_t epoch, absl::string_view key, absl::string_view value) {
  std::lock_guard<std::mutex> lock(mu_);
  if (stopped_) return StoppedError();
  Model* const model = FindRunning(name, epoch);
  if (model == nullptr) return EpochOverError(name, epoch);
  model->values.insert_or_assign(std::string(key), std::string(value));
  changed_.notify_all();
  return absl::OkStatus();
}

absl::StatusOr<std::string> Coordinator::Get(absl::string_view name, int64_t epoch, absl::string_view key,
                                             absl::Duration timeout) {
  std::unique_lock<std::mutex> lock(mu_);
  Model* model = nullptr;
  std::optional<std::string> value;
  Await(lock, absl::Now() + timeout, [&] {
    model = FindRunning(name, epoch);
    if (stopped_ || model == nullptr) return true;
    if (const auto it = model->values.find(key); it != model->values.end()) value = it->second;
    return value.has_value();
  });
  if (stopped_) return StoppedError();
  if (model == nullptr) return EpochOverError(name, epoch);
  if (value.has_value()) return *std::move(value);
  return absl::DeadlineExceededError(
      absl::StrCat("get ", key, " of ", name, ": a value within ", absl::FormatDuration(timeout), " expected"));
}

void Coordinator::Stop() {
  std::lock_guard<std::mutex> lock(mu_);
  if (stopped_) return;
  stopped_ = true;
  TellAll([](NodeSink& sink) { sink.OnStop(); });
  changed_.notify_all();
}

template <typename Done>
bool Coordinator::Await(std::unique_lock<std::mutex>& lock, absl::Time deadline, Done done) {
  return changed_.wait_until(lock, SteadyDeadline(deadline - absl::Now()), done);
}

}  // namespace paramshard::server
