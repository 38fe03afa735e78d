#include "server/models/trainer_gate.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "server/base/steady_time.h"
#include "server/base/thread.h"
#include "server/observe/log.h"

namespace paramshard::server {

void TrainerGate::Stop() {
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;  // a model whose creation failed was never reported, and is not now
  }
  Drain(SteadyTime::min(), absl::UnavailableError("the model was deleted"));
  std::thread thread;
  {
    absl::MutexLock lock(&mu_);
    thread = std::move(epoch_thread_);
  }
  if (thread.joinable()) thread.join();
}

// --- Trainers

void TrainerGate::Tell(const std::map<int, Trainer>& trainers, const absl::Status& why) const {
  for (const auto& [rank, trainer] : trainers) {
    trainer.on_ended({.epoch = std::nullopt, .numbers = context_.state.commits.numbers(), .why = why});
  }
}

absl::Status TrainerGate::Attach(Trainer trainer) {
  absl::MutexLock lock(&mu_);
  const int rank = trainer.rank;
  if (draining_) return drain_reason_;
  RETURN_IF_ERROR(model_.world.CheckDevices());
  RETURN_IF_ERROR(state_.CheckMayAttach());
  if (!model_.world.Serves(rank)) {
    const int first = model_.world.first_rank;
    return absl::InvalidArgumentError(absl::StrCat("attach ", model_.name(), ": want a rank in [", first, ", ",
                                                   first + model_.ranks(), "), got ", rank));
  }
  if (const RankHolder holder = HolderLocked(rank); holder.session != 0) {
    return absl::AlreadyExistsError(absl::StrCat("attach ", model_.name(), ": rank ", rank,
                                                 " is already attached by process ", holder.pid,
                                                 "; end it, or attach with take_over"));
  }
  waiting_[rank] = std::move(trainer);
  Report();
  return absl::OkStatus();
}

std::shared_ptr<Epoch> TrainerGate::current_epoch() const {
  absl::MutexLock lock(&mu_);
  return epoch_;
}

RankHolder TrainerGate::HolderOf(int rank) const {
  absl::MutexLock lock(&mu_);
  return HolderLocked(rank);
}

RankHolder TrainerGate::HolderLocked(int rank) const {
  const auto holder = [](const Trainer& trainer) {
    return RankHolder{.session = trainer.session, .pid = trainer.pid, .uid = trainer.uid};
  };
  if (const auto found = waiting_.find(rank); found != waiting_.end()) return holder(found->second);
  for (const Trainer* trainer : Present()) {
    if (trainer->rank == rank) return holder(*trainer);
  }
  return {};
}

bool TrainerGate::LeaveIfWaiting(int64_t session, const absl::Status& why) {
  std::map<int, Trainer> left;
  {
    absl::MutexLock lock(&mu_);
    const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                    [&](const auto& entry) { return entry.second.session == session; });
    if (found == waiting_.end()) return false;
    left.insert(waiting_.extract(found));
    changed_.SignalAll();
    Report();
  }
  Tell(left, why);
  return true;
}

void TrainerGate::Leave(int64_t session, const absl::Status& why) {
  if (LeaveIfWaiting(session, why)) return;
  const std::shared_ptr<Epoch> epoch = current_epoch();
  const Trainer* const trainer = epoch == nullptr ? nullptr : epoch->TrainerOf(session);
  if (trainer == nullptr) return;
  const int rank = model_.local(trainer->rank);
  epoch->MarkGone(rank);
  if (epoch->HasLeft(rank)) {
    absl::MutexLock lock(&mu_);
    changed_.SignalAll();
    return;
  }
  const absl::Status reason(why.code(), absl::StrCat("rank ", trainer->rank, ": ", why.message()));
  // Tells the world first: other daemons then know the reason when this one's engines close their connections.
  model_.world.cluster->Send(EndEpoch{.model = model_.name(), .epoch = epoch->number(), .why = reason}).IgnoreError();
  OnEpochEnd(epoch->number(), reason);
}

absl::Status TrainerGate::Detach(int64_t session, int64_t command_count) {
  if (LeaveIfWaiting(session, absl::AbortedError("the trainer has left"))) return absl::OkStatus();
  const std::shared_ptr<Epoch> epoch = current_epoch();
  const Trainer* const trainer = epoch == nullptr ? nullptr : epoch->TrainerOf(session);
  return trainer == nullptr ? absl::OkStatus() : epoch->Detach(model_.local(trainer->rank), command_count);
}

absl::Status TrainerGate::Submit(int64_t session, const v1::Command& command) {
  std::shared_ptr<Epoch> epoch;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [rank, trainer] : waiting_) {
      if (trainer.session != session) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("command ", command.number(), " of rank ", rank, ": sent before `started`"));
    }
    epoch = epoch_;
  }
  const Trainer* const trainer = epoch == nullptr ? nullptr : epoch->TrainerOf(session);
  return trainer == nullptr ? absl::OkStatus() : epoch->Submit(model_.local(trainer->rank), command);
}

std::vector<const Trainer*> TrainerGate::Present() const {
  std::vector<const Trainer*> present;
  if (!Running()) return present;
  for (const Trainer& trainer : epoch_->trainers()) {
    if (!epoch_->HasLeft(model_.local(trainer.rank))) present.push_back(&trainer);
  }
  return present;
}

// --- Epochs

// The cluster starts an epoch when the reports of all daemons cover all ranks. Nothing is reported while an epoch runs
// or ends: trainers that wait for the next one are reported when it is over.
void TrainerGate::Report() {
  if (!Idle() || closed_ || silent_) return;
  ModelReport report = state_.Report();
  for (const auto& [rank, trainer] : waiting_) report.attached_ranks.push_back(rank);
  model_.world.cluster->Send(report).IgnoreError();
}

void TrainerGate::OnEpochStart(const EpochStart& start) {
  std::thread finished;
  std::map<int, Trainer> refused;
  absl::Status started;
  {
    absl::MutexLock lock(&mu_);
    started = StartEpoch(start, finished, refused);
    if (!started.ok()) {
      if (!refused.empty()) last_end_ = started.ToString();
      model_.world.cluster->Send(EndEpoch{.model = model_.name(), .epoch = start.epoch, .why = started}).IgnoreError();
      Report();
    }
  }
  if (finished.joinable()) finished.join();
  Tell(refused, started);
}

absl::Status TrainerGate::StartEpoch(const EpochStart& start, std::thread& finished, std::map<int, Trainer>& refused) {
  // A trainer may have left since the report.
  if (!Idle() || draining_ || static_cast<int>(waiting_.size()) != model_.ranks()) {
    return absl::AbortedError("a trainer left before the epoch began");
  }
  RETURN_IF_ERROR(state_.BeginEpoch(start));
  std::vector<Trainer> trainers;
  for (const auto& [rank, trainer] : waiting_) trainers.push_back(trainer);
  const auto epoch = std::make_shared<Epoch>(context_, start, std::move(trainers));
  absl::StatusOr<std::thread> thread =
      StartThread(absl::StrCat("an epoch of ", model_.name()), [this, epoch] { RunEpoch(*epoch); });
  if (!thread.ok()) {
    refused = std::exchange(waiting_, {});
    return thread.status();
  }
  waiting_.clear();
  epoch_ = epoch;
  recorder_ = epoch->recorder();
  finished = std::exchange(epoch_thread_, *std::move(thread));
  return absl::OkStatus();
}

void TrainerGate::RunEpoch(Epoch& epoch) {
  const auto log = [&](LogLevel level, absl::string_view what, absl::string_view key, const std::string& value) {
    model_.log->Write(level, what,
                      {{"model", model_.name()}, {"epoch", absl::StrCat(epoch.number())}, {std::string(key), value}});
  };
  model_.log->Write(LogLevel::kInfo, "epoch started",
                    {{"model", model_.name()}, {"epoch", absl::StrCat(epoch.number())}});
  if (epoch.leaves_nodes_out()) {
    model_.log->Write(LogLevel::kWarning, "epoch runs without some daemons",
                      {{"model", model_.name()},
                       {"epoch", absl::StrCat(epoch.number())},
                       {"nodes", absl::StrJoin(epoch.topology().active(), ",")},
                       {"of", absl::StrCat(model_.topology.nodes())}});
  }
  model_.world.metrics->Add(Metric::kEpochsStarted);
  const absl::Status why = epoch.Run();
  const bool left_in_order = epoch.LeftInOrder();
  model_.world.metrics->AddEpochEnd(left_in_order ? absl::OkStatus() : why);
  const std::string end = left_in_order ? "all trainers have detached" : why.ToString();
  log(LogLevel::kInfo, "epoch ended", "why", end);
  if (!left_in_order) {
    for (const std::string& words : epoch.last_words()) log(LogLevel::kInfo, "rank state at epoch end", "state", words);
  }
  std::map<int, Trainer> refused;
  absl::Status lost;
  {
    absl::MutexLock lock(&mu_);
    lost = state_.EndEpoch(epoch.open_commit());
    context_.state.copies.EndCommit();
    context_.state.publication->EndCommit();
    epoch_ = nullptr;
    changed_.SignalAll();
    last_end_ = lost.ok() ? end : lost.ToString();
    // Trainers may have attached while the epoch ended. Trainers that attach later are not refused: as soon as the lock
    // is given up an import may settle the doubt.
    const bool may_wait = model_.may_come_back && !state_.loss().ok();
    if (!lost.ok() && !may_wait) refused = std::exchange(waiting_, {});
    Report();
  }
  context_.host.OnEpochOver();
  Tell(refused, lost);
}

void TrainerGate::OnLastCommand(int64_t number, int64_t command) {
  const std::shared_ptr<Epoch> epoch = current_epoch();
  if (epoch != nullptr && epoch->number() == number) epoch->SetLastPoint(command);
}

void TrainerGate::OnCommandsWanted(int64_t number, const CommandsThrough& unless) {
  const std::shared_ptr<Epoch> epoch = current_epoch();
  if (epoch != nullptr && epoch->number() == number) epoch->ReportCommands(unless);
}

void TrainerGate::OnEpochEnd(int64_t number, const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  if (epoch_ != nullptr && epoch_->number() == number) epoch_->End(why);
  changed_.SignalAll();
}

void TrainerGate::OnEpochRefused(const absl::Status& why) {
  std::map<int, Trainer> refused;
  {
    absl::MutexLock lock(&mu_);
    refused = std::exchange(waiting_, {});
    last_end_ = why.ToString();
    Report();
    changed_.SignalAll();
  }
  Tell(refused, why);
}

// --- Ends

void TrainerGate::BeginDrain(const absl::Status& why) {
  std::shared_ptr<Epoch> epoch;
  {
    absl::MutexLock lock(&mu_);
    draining_ = true;
    drain_reason_ = why;
    epoch = epoch_;
    state_.BeginDrain();
  }
  OnEpochRefused(why);
  if (epoch != nullptr) epoch->EndAfterCommits(why);
  absl::MutexLock lock(&mu_);
  changed_.SignalAll();
}

void TrainerGate::FinishDrain(SteadyTime deadline) {
  const Clock& clock = *model_.clock;
  absl::MutexLock lock(&mu_);
  while ((!Idle() || state_.is_changing()) && clock.Now() < deadline) {
    changed_.WaitUntil(&mu_, After(SteadyNow(), Until(deadline, clock.Now())));
  }
  if (!Idle()) epoch_->End(drain_reason_);
}

absl::Status TrainerGate::Close(const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(CheckVacant("delete model"));
  RETURN_IF_ERROR(state_.CheckSettled("delete model"));
  if (!closed_) {
    draining_ = true;
    closed_ = true;
    drain_reason_ = why;
    // Also ends a vote that is in doubt: the fate of its commit does not matter here any more. A silent model has lost
    // its name, which another model may have.
    if (!silent_) model_.world.cluster->Send(ModelDeleted{.model = model_.name()}).IgnoreError();
    // Its own trainers have left the epoch. The world's word for the end may never come: node 0 may hang.
    if (epoch_ != nullptr) epoch_->End(absl::AbortedError(absl::StrCat("model ", model_.name(), " was deleted")));
  }
  const auto idle = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return Idle(); };
  mu_.Await(absl::Condition(&idle));
  return absl::OkStatus();
}

void TrainerGate::Silence() {
  absl::MutexLock lock(&mu_);
  silent_ = true;
}

// --- Changes of the state

absl::Status TrainerGate::CheckOpen() const {
  absl::MutexLock lock(&mu_);
  return draining_ ? drain_reason_ : absl::OkStatus();
}

absl::Status TrainerGate::CheckVacant(absl::string_view operation) const {
  const Trainer* trainer = nullptr;
  if (!waiting_.empty()) trainer = &waiting_.begin()->second;
  if (const std::vector<const Trainer*> present = Present(); !present.empty()) trainer = present.front();
  if (trainer == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(operation, " ", model_.name(), ": rank ", trainer->rank,
                                                    " is attached (process ", trainer->pid, "); end it first"));
}

void TrainerGate::AwaitSettledEpoch() const {
  const SteadyTime deadline = SteadyDeadline(model_.step_timeout);
  while (Running() && Present().empty() && !changed_.WaitUntil(&mu_, deadline)) {
  }
  // An epoch that has ended is soon over.
  const auto settled = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return Idle() || Running(); };
  mu_.Await(absl::Condition(&settled));
}

absl::Status TrainerGate::WhileOpen(absl::FunctionRef<absl::Status()> begin) {
  absl::MutexLock lock(&mu_);
  return draining_ ? drain_reason_ : begin();
}

absl::Status TrainerGate::WhileVacant(absl::string_view operation, const absl::Status& dismissal,
                                      absl::FunctionRef<absl::Status()> begin) {
  std::map<int, Trainer> dismissed;
  const auto run = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::Status {
    if (draining_) return drain_reason_;
    AwaitSettledEpoch();
    // The lock is held from here on: no trainer attaches meanwhile.
    if (!dismissal.ok() && !waiting_.empty()) {
      dismissed = std::exchange(waiting_, {});
      Report();
      changed_.SignalAll();
    }
    RETURN_IF_ERROR(CheckVacant(operation));
    if (!Idle()) {
      return absl::FailedPreconditionError(absl::StrCat(operation, " ", model_.name(), ": epoch ", epoch_->number(),
                                                        " still runs at other daemons; let their trainers leave"));
    }
    // A drain may have begun while it waited.
    if (draining_) return drain_reason_;
    return begin();
  };
  absl::Status status;
  {
    absl::MutexLock lock(&mu_);
    status = run();
  }
  Tell(dismissed, dismissal);
  return status;
}

void TrainerGate::OnStateChange(bool reports) {
  absl::MutexLock lock(&mu_);
  if (reports) Report();
  changed_.SignalAll();
}

// --- Inspection

bool TrainerGate::idle() const {
  absl::MutexLock lock(&mu_);
  return Idle();
}

std::shared_ptr<const Recorder> TrainerGate::recorder() const {
  absl::MutexLock lock(&mu_);
  return recorder_;
}

ModelActivity TrainerGate::activity() const {
  std::shared_ptr<Epoch> epoch;
  ModelActivity activity;
  {
    absl::MutexLock lock(&mu_);
    epoch = epoch_;
    activity.epoch = state_.last_epoch();
    activity.running = Running();
    activity.last_end = last_end_;
    activity.restore = state_.progress();
    activity.rollback = state_.rollback();
    for (const auto& [rank, trainer] : waiting_) {
      activity.trainers.push_back({.trainer = trainer, .waits_for = "other ranks"});
    }
  }
  if (epoch == nullptr) return activity;
  // Memory is held until the epoch's thread has finished, also while the epoch ends.
  activity.words_bytes = epoch->words_bytes();
  for (int rank = 0; rank < model_.ranks(); ++rank) {
    activity.slots_bytes.push_back(model_.slots_bytes(rank));
    activity.scratch_bytes.push_back(epoch->scratch_bytes(rank));
  }
  if (!activity.running) return activity;
  for (const Trainer& trainer : epoch->trainers()) {
    const int rank = model_.local(trainer.rank);
    if (epoch->HasLeft(rank)) continue;
    activity.trainers.push_back({.trainer = trainer,
                                 .epoch = epoch->number(),
                                 .last_command = epoch->last_command(rank),
                                 .waits_for = epoch->WaitsFor(rank)});
  }
  activity.engine = epoch->engine();
  if (epoch->leaves_nodes_out()) activity.active_nodes = epoch->topology().active();
  return activity;
}

std::vector<int> TrainerGate::MissingRanks() const {
  absl::MutexLock lock(&mu_);
  std::vector<int> missing;
  if (Running()) return missing;
  for (int i = 0; i < model_.ranks(); ++i) {
    const int rank = model_.world.first_rank + i;
    if (!waiting_.contains(rank)) missing.push_back(rank);
  }
  return missing;
}

}  // namespace paramshard::server
