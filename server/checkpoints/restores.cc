#include "server/checkpoints/restores.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/model/names.h"
#include "kernels/base/status_macros.h"
#include "server/base/thread.h"
#include "server/observe/log.h"
#include "server/observe/log_throttle.h"

namespace paramshard::server {
namespace {

// Largest number of orders that are remembered. Further ones are refused.
constexpr size_t kMostOrders = 1024;

// Trainers may come again in a loop.
ThrottledLog& RollbackLog() {
  static auto* const log = new ThrottledLog();
  return *log;
}

bool IsPassing(const absl::Status& why) { return absl::IsUnavailable(why) || absl::IsCancelled(why); }

// Returns the error for trainers: the reason why the epoch does not start, and why no daemon rolls back. Trainers come
// again by themselves if the cause is temporary.
absl::Status NotRolledBack(const absl::Status& why, const absl::Status& status) {
  const bool passes = IsPassing(status) || absl::IsDeadlineExceeded(status);
  const absl::StatusCode code = passes ? absl::StatusCode::kUnavailable : why.code();
  return absl::Status(code, absl::StrCat(why.message(), "; no daemon rolled back to a checkpoint: ", status.message()));
}

}  // namespace

// --- From start to end ---

Restores::Restores(Options options)
    : options_(std::move(options)),
      requests_(
          {.store = options_.store,
           .timeout = options_.timeout,
           .clock = options_.clock,
           .draw_id = options_.draw_id,
           .roll_back = [this](const std::string& model, const absl::Status& why) { BeginRollback(model, why); }}) {
  options_.store->SetRestoreListener(this);
}

Restores::~Restores() {
  options_.store->SetRestoreListener(nullptr);
  BeginDrain();
  {
    absl::MutexLock lock(&mu_);
    while (!works_.empty()) changed_.Wait(&mu_);
  }
  JoinFinished();
}

void Restores::BeginDrain() {
  {
    absl::MutexLock lock(&mu_);
    draining_ = true;
    for (const auto& [model, agreement] : leading_) agreement->Cancel();
    for (const auto& [model, ordered] : ordered_) {
      if (ordered.taken != nullptr) ordered.taken->Cancel();
    }
  }
  requests_.BeginDrain();
}

absl::Status Restores::StartWork(absl::string_view purpose, std::function<void()> body) {
  absl::MutexLock lock(&mu_);
  const int64_t number = ++last_work_;
  ASSIGN_OR_RETURN(std::thread thread, StartThread(purpose, [this, number, body = std::move(body)] {
                     // Joins here, because the caller may hold locks that finished threads still need.
                     JoinFinished();
                     body();
                     absl::MutexLock lock(&mu_);
                     finished_.push_back(std::move(works_[number]));
                     works_.erase(number);
                     changed_.SignalAll();
                   }));
  works_.emplace(number, std::move(thread));
  return absl::OkStatus();
}

void Restores::JoinFinished() {
  std::vector<std::thread> finished;
  {
    absl::MutexLock lock(&mu_);
    finished = std::exchange(finished_, {});
  }
  for (std::thread& thread : finished) thread.join();
}

void Restores::OnRestoreMessage(const RestoreMessage& message) {
  const std::string& model = message.model;
  // Node 0 alone is asked: what another node's stream says does not make a leader.
  const bool is_for_leader =
      std::holds_alternative<RollbackNeed>(message.what) || std::holds_alternative<RestoreRequest>(message.what);
  if (is_for_leader && !leads()) return;
  if (const auto* const need = std::get_if<RollbackNeed>(&message.what); need != nullptr) {
    return BeginRollback(model, need->why);
  }
  if (const auto* const request = std::get_if<RestoreRequest>(&message.what); request != nullptr) {
    return requests_.OnRequest(model, *request);
  }
  if (const auto* const answer = std::get_if<RestoreAnswer>(&message.what); answer != nullptr) {
    return requests_.OnAnswer(model, *answer);
  }
  if (const auto* const lost = std::get_if<RestoreFollowerLost>(&message.what); lost != nullptr) {
    return requests_.OnFollowerLost(lost->node);
  }
  if (const auto* const lost = std::get_if<RestoreLeaderLost>(&message.what); lost != nullptr)
    return TakeLoss(lost->why);
  Due due;
  {
    absl::MutexLock lock(&mu_);
    if (const auto leading = leading_.find(model); leading != leading_.end()) leading->second->OnMessage(message);
    if (const auto ordered = ordered_.find(model); ordered != ordered_.end() && ordered->second.taken != nullptr) {
      ordered->second.taken->OnMessage(message);
    }
    if (const auto* const end = std::get_if<RestoreEnd>(&message.what); end != nullptr) TakeEnd(model, *end);
    if (const auto* const order = std::get_if<RestoreOrder>(&message.what); order != nullptr) {
      due = TakeOrder(model, *order);
    }
  }
  requests_.SignalChanged();
  CarryOut(due);
}

void Restores::OnCreatedFresh(const std::string& model) {
  Due due;
  {
    absl::MutexLock lock(&mu_);
    broken_.erase(model);
    const absl::StatusOr<std::shared_ptr<Model>> found = options_.store->Find(model);
    if (found.ok() && FindUntaken(model) != nullptr) {
      due = {.model = *found, .agreement = Take(model, ordered_.find(model)->second)};
    }
  }
  requests_.Answer(model, absl::OkStatus());
  requests_.SignalChanged();
  CarryOut(due);
}

// --- Restores that node 0 leads ---

absl::Status Restores::CheckLeads(absl::string_view model) const {
  if (leads()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("restore ", DisplayName(model),
                                                    ": only node 0 starts restores, this is node ", cluster().node(),
                                                    "; call node 0"));
}

absl::StatusOr<std::unique_ptr<RestoreTask>> Restores::Prepare(std::shared_ptr<Model> model,
                                                               const RestoreSource& source, RestoreOrder terms) const {
  const SteadyTime begin = SteadyNow();
  ASSIGN_OR_RETURN(const CheckpointChoice choice,
                   ChooseCheckpoint(model->save_dir(), model->spec().name, source.checkpoint));
  terms.id = options_.draw_id().value;
  terms.folder = source.checkpoint.kind == CheckpointRequest::Kind::kPath ? choice.path : choice.id.folder;
  terms.save_id = choice.id.save_id;
  terms.step = choice.step;
  terms.convert_moments = source.plan.convert_moments;
  terms.spec_fingerprint = model->fingerprint();
  return RestoreTask::Prepare(std::move(model), choice.path, std::move(terms), begin);
}

absl::Status Restores::Register(const std::string& model, RestoreAgreement* agreement) {
  absl::MutexLock lock(&mu_);
  // A prepared restore has the model's import lock: there is no other restore of this model. But the model may have
  // been deleted since, and another model may have its name.
  if (!leading_.try_emplace(model, agreement).second) {
    return absl::UnavailableError(
        absl::StrCat("restore ", DisplayName(model), ": another restore of this name is in progress; try again"));
  }
  if (draining_) agreement->Cancel();
  return absl::OkStatus();
}

absl::StatusOr<RestoreResult> Restores::Run(std::unique_ptr<RestoreTask> task, absl::FunctionRef<absl::Status()> begun,
                                            std::function<bool()> is_abandoned) {
  const std::unique_ptr<RestoreTask> restore = std::move(task);  // ends here, and releases the model's import lock
  if (cluster().nodes() == 1) return restore->Run(begun);
  const std::string model = restore->model().spec().name;
  RestoreAgreement agreement({.role = RestoreAgreement::Role::kLeader,
                              .cluster = &cluster(),
                              .model = model,
                              .order = restore->order(),
                              .saved = restore->manifest().tensors,
                              .replicas = restore->replicas(),
                              .deadline = After(options_.clock->Now(), options_.timeout),
                              .clock = options_.clock,
                              .is_abandoned = std::move(is_abandoned),
                              .at = options_.at});
  RETURN_IF_ERROR(Register(model, &agreement));
  const absl::StatusOr<RestoreResult> result = restore->Run(agreement, begun);
  agreement.Finish(result.status());
  absl::MutexLock lock(&mu_);
  leading_.erase(model);
  if (result.ok()) broken_.erase(model);
  if (!result.ok() && agreement.has_gone()) {
    Broken& broken = broken_[model];
    broken.source.checkpoint = {.kind = CheckpointRequest::Kind::kPath, .folder = restore->folder()};
    broken.source.plan.convert_moments = restore->order().convert_moments;
    broken.passes = IsPassing(agreement.failure());
  }
  return result;
}

std::optional<Restores::Broken> Restores::FindBroken(const std::string& model) const {
  absl::MutexLock lock(&mu_);
  const auto found = broken_.find(model);
  return found == broken_.end() ? std::nullopt : std::optional(found->second);
}

// --- Rollbacks ---

std::optional<RestoreSource> Restores::RollbackSource(const std::string& model) const {
  const ModelStore& store = *options_.store;
  const bool is_one_of_several = store.world().rank_count() != store.world().world_size;
  if (store.lost().Check(model).ok() || store.save_dir().empty() || !is_one_of_several) return std::nullopt;
  if (const std::optional<ChangeSource> cut_off = store.lost().SourceOf(model); cut_off.has_value()) {
    return RestoreSource{.checkpoint = {.kind = CheckpointRequest::Kind::kPath, .folder = cut_off->text},
                         .plan = {.convert_moments = cut_off->convert_moments}};
  }
  if (!HasCheckpoint(store.save_dir(), model).value_or(true)) return std::nullopt;
  return RestoreSource();
}

void Restores::EndRollback(const std::string& model, const absl::Status& status) {
  cluster().Send(RestoreMessage{.model = model, .what = RollbackEnd{.status = status}}).IgnoreError();
}

void Restores::BeginRollback(const std::string& model, const absl::Status& why) {
  {
    absl::MutexLock lock(&mu_);
    if (!rollbacks_.insert(model).second) return;
  }
  const auto end = [this, model] {
    absl::MutexLock lock(&mu_);
    rollbacks_.erase(model);
  };
  const absl::Status started = StartWork(absl::StrCat("a rollback of ", DisplayName(model)), [this, model, why, end] {
    const std::optional<absl::Status> status = TryRollback(model, why);
    // This comes first: a new need from here on begins another rollback.
    end();
    if (!status.has_value()) return;
    // Creations wait for the end of a temporary cause.
    if (!status->ok() && !absl::IsUnavailable(*status)) requests_.Answer(model, *status);
    EndRollback(model, *status);
  });
  if (started.ok()) return;
  end();
  EndRollback(model, started);
}

std::optional<absl::Status> Restores::TryRollback(const std::string& name, const absl::Status& why) {
  const absl::StatusOr<std::shared_ptr<Model>> model = options_.store->Find(name);
  if (!model.ok() && RollbackSource(name).has_value()) return std::nullopt;
  const absl::Status status = model.ok() ? RollBack(*model, why) : model.status();
  if (status.ok()) return status;
  const absl::Status told = NotRolledBack(why, status);
  RollbackLog().Write(LogLevel::kError, "failed to roll back to a checkpoint",
                      {{"model", name}, {"why", told.ToString()}});
  return told;
}

// Restores the checkpoint that was saved last, or the checkpoint of the restore that broke off.
absl::Status Restores::RollBack(const std::shared_ptr<Model>& model, const absl::Status& why) {
  const std::string& name = model->spec().name;
  std::optional<Broken> broken = FindBroken(name);
  const bool was_asked_for = broken.has_value() && !model->state().usable().ok();
  ASSIGN_OR_RETURN(
      std::unique_ptr<RestoreTask> task,
      Prepare(model, was_asked_for ? broken->source : RestoreSource(),
              {.creates = true, .rollback_why = std::string(why.message()), .was_asked_for = was_asked_for}));
  RETURN_IF_ERROR(task->CheckRollsBack());
  const absl::Status status = Run(std::move(task)).status();
  broken = FindBroken(name);
  // The restore is repeated when that daemon is back.
  if (!status.ok() && broken.has_value() && broken->passes) return absl::UnavailableError(status.message());
  return status;
}

// --- Orders of node 0 ---

// Asks the store under the lock: a creation of the model without a restore looks for an order after that.
Restores::Due Restores::TakeOrder(const std::string& model, const RestoreOrder& order) {
  const absl::StatusOr<std::shared_ptr<Model>> found = options_.store->Find(model);
  if (const absl::Status status = CheckOrder(order, found.status()); !status.ok()) {
    Refuse(model, order.id, status);
    return {};
  }
  if (const auto other = ordered_.find(model); other != ordered_.end() && other->second.taken != nullptr) {
    other->second.next = order;
    return {};
  }
  // Drops orders whose models were not created in time.
  const SteadyTime now = options_.clock->Now();
  std::erase_if(ordered_,
                [&](const auto& each) { return each.second.taken == nullptr && each.second.deadline <= now; });
  if (ordered_.size() >= kMostOrders) {
    Refuse(model, order.id, absl::ResourceExhaustedError("too many restores wait for their models"));
    return {};
  }
  Ordered& ordered = ordered_[model];
  ordered = {.order = order, .deadline = After(now, order.timeout)};
  return found.ok() ? Due{.model = *found, .agreement = Take(model, ordered)} : Due{};
}

absl::Status Restores::CheckOrder(const RestoreOrder& order, const absl::Status& found) {
  if (draining_) return DrainError();
  if (!order.creates) RETURN_IF_ERROR(found);
  return ParseCheckpointRequest(order.folder).status();
}

void Restores::Refuse(const std::string& model, absl::uint128 id, const absl::Status& why) {
  cluster().Send(RestoreMessage{.model = model, .what = RestoreReport{.id = id, .status = why}}).IgnoreError();
}

const Restores::Ordered* Restores::FindUntaken(absl::string_view model) const {
  const auto found = ordered_.find(model);
  if (found == ordered_.end() || found->second.taken != nullptr) return nullptr;
  return options_.clock->Now() < found->second.deadline ? &found->second : nullptr;
}

RestoreAgreement* Restores::Take(const std::string& model, Ordered& ordered) {
  ordered.taken =
      std::make_unique<RestoreAgreement>(RestoreAgreement::Options{.role = RestoreAgreement::Role::kFollower,
                                                                   .cluster = &cluster(),
                                                                   .model = model,
                                                                   .order = ordered.order,
                                                                   .deadline = ordered.deadline,
                                                                   .clock = options_.clock,
                                                                   .at = options_.at});
  if (draining_) ordered.taken->Cancel();
  return ordered.taken.get();
}

void Restores::CarryOut(const Due& due) {
  if (due.agreement == nullptr) return;
  const absl::Status started =
      StartWork(absl::StrCat("a restore of ", DisplayName(due.agreement->model())), [this, due] {
        const auto nothing = [] { return absl::OkStatus(); };
        End(*due.agreement, RestoreTask::RunOrdered(due.model, *due.agreement, nothing).status());
      });
  if (!started.ok()) End(*due.agreement, started);
}

void Restores::End(const RestoreAgreement& agreement, const absl::Status& status) {
  std::unique_ptr<RestoreAgreement> ended;
  Due due;
  {
    absl::MutexLock lock(&mu_);
    const auto ordered = ordered_.find(agreement.model());
    ended = std::move(ordered->second.taken);
    const std::optional<RestoreOrder> next = ordered->second.next;
    ordered_.erase(ordered);
    if (next.has_value()) due = TakeOrder(ended->model(), *next);
  }
  requests_.SignalChanged();
  CarryOut(due);
  // Node 0 may order the next restore as soon as it has this report.
  ended->Finish(status);
}

void Restores::TakeEnd(const std::string& model, const RestoreEnd& end) {
  const auto ordered = ordered_.find(model);
  if (ordered == ordered_.end()) return;
  if (ordered->second.next.has_value() && ordered->second.next->id == end.id) ordered->second.next.reset();
  if (ordered->second.order.id == end.id && ordered->second.taken == nullptr) ordered_.erase(ordered);
}

void Restores::TakeLoss(const absl::Status& why) {
  {
    absl::MutexLock lock(&mu_);
    std::erase_if(ordered_, [](const auto& each) { return each.second.taken == nullptr; });
    for (auto& [model, ordered] : ordered_) {
      ordered.next.reset();
      ordered.taken->OnMessage({.model = model, .what = RestoreEnd{.id = ordered.order.id, .status = why}});
    }
  }
  requests_.OnLeaderLost(why);
}

// --- Creations that follow an order ---

absl::StatusOr<Restores::Answer> Restores::AwaitOrder(const std::string& model, absl::FunctionRef<bool()> is_gone) {
  Answer answer;
  const auto is_settled = [&] {
    answer.is_here = options_.store->Find(model).ok();
    if (!answer.is_here) answer.order = FindOrder(model);
    return answer.is_here || answer.order.has_value();
  };
  ASSIGN_OR_RETURN(const std::optional<RestoreAnswer> told, requests_.Await(model, is_settled, is_gone));
  if (told.has_value()) answer.heals = told->heals;
  return answer;
}

std::optional<absl::uint128> Restores::FindOrder(absl::string_view model) const {
  absl::MutexLock lock(&mu_);
  const Ordered* const untaken = FindUntaken(model);
  return untaken == nullptr ? std::nullopt : std::optional(untaken->order.id);
}

absl::StatusOr<RestoreAgreement*> Restores::TakeOrdered(const std::string& model, absl::uint128 id) {
  absl::MutexLock lock(&mu_);
  const Ordered* const untaken = FindUntaken(model);
  if (draining_ || untaken == nullptr || untaken->order.id != id) {
    return absl::UnavailableError(
        absl::StrCat("create model ", DisplayName(model), ": node 0 gave up the restore; try again"));
  }
  return Take(model, ordered_.find(model)->second);
}

void Restores::RefuseOrder(const std::string& model, absl::uint128 id, const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  const Ordered* const untaken = FindUntaken(model);
  if (untaken == nullptr || untaken->order.id != id) return;
  ordered_.erase(model);
  Refuse(model, id, why);
}

}  // namespace paramshard::server
