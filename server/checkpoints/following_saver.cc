#include "server/checkpoints/following_saver.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/thread.h"
#include "server/checkpoints/checkpoint_choice.h"

namespace paramshard::server {
namespace {

// Node 0 orders no more than a few between two decisions.
constexpr size_t kRememberedOrders = 64;

}  // namespace

// --- From start to end ---

absl::StatusOr<std::unique_ptr<FollowingSaver>> FollowingSaver::Create(Model& model, const Options& options) {
  auto saver = std::unique_ptr<FollowingSaver>(new FollowingSaver(model, options));
  RETURN_IF_ERROR(saver->Open());
  return saver;
}

absl::Status FollowingSaver::Open() {
  ASSIGN_OR_RETURN(images_, DaemonImages::Create(model_, options_.calls, options_.before_copy));
  ASSIGN_OR_RETURN(std::thread thread, StartThread("saves of " + model_.spec().name, [this] { Run(); }));
  absl::MutexLock lock(&mu_);
  thread_ = std::move(thread);
  return absl::OkStatus();
}

FollowingSaver::~FollowingSaver() { Stop(); }

void FollowingSaver::Stop() {
  stopping_ = true;
  std::thread thread;
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
    thread = std::move(thread_);
    changed_.SignalAll();
  }
  if (thread.joinable()) thread.join();
  absl::MutexLock lock(&mu_);
  const absl::Status why = absl::CancelledError("the model is closed");
  if (reported_.has_value()) FinishReported(why);
  if (!under_way_.has_value()) return;
  Report(under_way_->order.id, why);
  Finish(under_way_, {.why = why});
}

absl::StatusOr<SaveRecord> FollowingSaver::Request() {
  return absl::FailedPreconditionError(absl::StrCat("save ", model_.spec().name,
                                                    ": only node 0 starts saves, this is node ",
                                                    model_.world().cluster->node(), "; call node 0"));
}

absl::Status FollowingSaver::CheckIdle(absl::string_view operation) const {
  absl::MutexLock lock(&mu_);
  if (IsIdle()) return absl::OkStatus();
  const UnderWay& save = under_way_.has_value() ? *under_way_ : *reported_;
  return absl::UnavailableError(absl::StrCat(operation, " ", model_.spec().name, ": the save of step ", save.order.step,
                                             " is in progress; try again when it is done"));
}

// Node 0 saves for both nodes, whether it drains too or not.
void FollowingSaver::Drain(SteadyTime deadline) {
  const auto is_settled = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return IsIdle() && !wish_open_; };
  const auto await_settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    while (!is_settled() && SteadyNow() < deadline) changed_.WaitUntil(&mu_, deadline);
    return is_settled() && !stopped_;
  };
  {
    absl::MutexLock lock(&mu_);
    if (!await_settled()) return;
  }
  if (IsDrained()) return;
  absl::MutexLock lock(&mu_);
  if (!await_settled()) return;
  wish_open_ = model_.world().cluster->TellSave({.model = model_.spec().name, .what = SaveWish()}).ok();
  await_settled();
}

bool FollowingSaver::IsDrained() const {
  if (!options_.saves_on_drain || model_.untouched()) return true;
  const StateNumbers numbers = model_.state().numbers;
  return HasWholeCheckpoint(options_.root, model_.spec().name, numbers.commit_number, numbers.history.value);
}

// --- What node 0 says ---

void FollowingSaver::OnNews(const SaveNews& news) {
  absl::MutexLock lock(&mu_);
  if (const auto* const order = std::get_if<SaveOrder>(&news.what); order != nullptr) TakeOrder(*order);
  if (const auto* const go = std::get_if<SavePermission>(&news.what); go != nullptr) TakePermission(go->id);
  if (const auto* const end = std::get_if<SaveEnd>(&news.what); end != nullptr) TakeEnd(*end);
  if (const auto* const loss = std::get_if<SaveLeaderLost>(&news.what); loss != nullptr) TakeLoss(loss->why);
}

void FollowingSaver::TakeOrder(const SaveOrder& order) {
  if (!IsNewOrder(order.id)) return;
  if (stopped_) return Report(order.id, absl::CancelledError("the model is closed"));
  if (under_way_.has_value()) {
    return Report(order.id, absl::UnavailableError(absl::StrCat("the save of step ", under_way_->order.step,
                                                                " is still in progress there")));
  }
  const SteadyTime now = options_.clock->Now();
  const SaveRecord& record = records_.Add({.reason = order.reason, .step = order.step, .begun_at = options_.now()});
  under_way_ = UnderWay{.order = order, .number = record.number, .begun = now, .deadline = After(now, order.timeout)};
  given_up_ = false;
  images_->Restart();
  Hold(model_.idle());
}

// An order that comes with a decision may arrive after later orders of the stream.
bool FollowingSaver::IsNewOrder(absl::uint128 id) {
  if (absl::c_linear_search(taken_orders_, id)) return false;
  taken_orders_.push_back(id);
  if (taken_orders_.size() > kRememberedOrders) taken_orders_.pop_front();
  return true;
}

void FollowingSaver::TakePermission(absl::uint128 id) {
  if (!IsUnderWay(id)) return;
  under_way_->is_permitted = true;
  changed_.SignalAll();
}

void FollowingSaver::TakeEnd(const SaveEnd& end) {
  wish_open_ = false;
  changed_.SignalAll();
  if (reported_.has_value() && reported_->order.id == end.id) return Finish(reported_, end);
  if (!IsUnderWay(end.id)) return;
  if (Waits()) return Finish(under_way_, end);
  // The thread checks whether to go on, and ends the save then.
  under_way_->end = end;
  given_up_ = true;
}

void FollowingSaver::TakeLoss(const absl::Status& why) {
  wish_open_ = false;
  changed_.SignalAll();
  if (reported_.has_value()) FinishReported(why);
  if (under_way_.has_value()) TakeEnd({.id = under_way_->order.id, .why = why});
}

// Node 0 may have published the save if this daemon's part is whole.
void FollowingSaver::FinishReported(const absl::Status& why) {
  const bool is_whole = reported_status_.ok();
  Finish(reported_,
         {.state = is_whole ? SaveState::kUnknown : SaveState::kAbandoned, .why = is_whole ? why : reported_status_});
}

// --- The state ---

void FollowingSaver::OnCommitted(const CommitAnswer&, bool) {
  absl::MutexLock lock(&mu_);
  if (Waits()) Hold(/*settled=*/false);
}

void FollowingSaver::OnSettled() {
  absl::MutexLock lock(&mu_);
  if (Waits()) Hold(/*settled=*/true);
}

absl::Status FollowingSaver::CheckIsOrdered(const Model::HeldState& state) const {
  const SaveOrder& order = under_way_->order;
  const History history = model_.history();
  if (model_.fingerprint() != order.spec_fingerprint) {
    return absl::FailedPreconditionError("the spec differs from node 0's spec");
  }
  if (state.numbers.commit_number != order.step || state.numbers.version != order.version) {
    return absl::FailedPreconditionError(absl::StrCat("want commit ", order.step, " (version ", order.version,
                                                      ") as at node 0, got commit ", state.numbers.commit_number,
                                                      " (version ", state.numbers.version, ")"));
  }
  if (history.id.ToString() == order.history_id) return absl::OkStatus();
  // Nothing tells the two histories apart yet, as when an epoch starts.
  if (model_.untouched() && history.lineage.ToString() == order.lineage) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("want history ", order.history_id, " as at node 0, got ",
                                                    history.id.ToString(),
                                                    ": import or restore the same at all daemons"));
}

void FollowingSaver::Hold(bool settled) {
  absl::StatusOr<Model::HeldState> state = model_.HoldState();
  if (absl::IsAborted(state.status())) return;
  absl::Status status = state.status();
  if (state.ok()) {
    // Its commit is still to come.
    const bool is_early = !settled && state->numbers.commit_number < under_way_->order.step;
    if (!is_early) status = CheckIsOrdered(*state);
    if (is_early || !status.ok()) model_.ReleaseState();
    if (is_early) return;
  }
  if (!status.ok()) {
    Report(under_way_->order.id, status);
    return Finish(under_way_, {.why = status});
  }
  under_way_->is_held = true;
  SaveRecord& record = present();
  record.state = SaveState::kCopying;
  record.history = state->numbers.history;
  work_ = Work{.order = under_way_->order, .deadline = under_way_->deadline, .state = *std::move(state)};
  changed_.SignalAll();
}

void FollowingSaver::Report(absl::uint128 id, const absl::StatusOr<PartReport>& report) {
  SavePart part{.id = id, .status = report.status()};
  if (report.ok()) part.hash = report->hash;
  // If this does not reach node 0, node 0 has lost this node, and with it the save.
  model_.world().cluster->TellSave({.model = model_.spec().name, .what = part}).IgnoreError();
}

// --- Records ---

void FollowingSaver::Finish(std::optional<UnderWay>& save, const SaveEnd& end) {
  SaveRecord& record = *records_.Find(save->number);
  record = Shown(record);
  record.state = end.state;
  record.status = end.why;
  record.path = end.path;
  if (!end.path.empty()) record.size_bytes = end.size_bytes;
  const absl::StatusOr<HistoryId> history = HistoryId::Parse(save->order.history_id);
  if (history.ok()) record.history = *history;
  records_.Close(record);
  save.reset();
  changed_.SignalAll();
}

SaveRecord FollowingSaver::Shown(const SaveRecord& record) const {
  SaveRecord shown = record;
  const bool is_under_way = under_way_.has_value() && under_way_->number == record.number;
  if (!is_under_way && !IsOpen(record.number)) return shown;
  shown.took = absl::FromChrono(options_.clock->Now() - (is_under_way ? under_way_ : reported_)->begun);
  shown.written_bytes = is_under_way ? images_->written_bytes() : record.size_bytes;
  return shown;
}

bool FollowingSaver::IsOpen(int64_t number) const {
  return (under_way_.has_value() && under_way_->number == number) ||
         (reported_.has_value() && reported_->number == number);
}

absl::StatusOr<SaveRecord> FollowingSaver::Await(int64_t number, SteadyTime deadline) const {
  absl::MutexLock lock(&mu_);
  while (IsOpen(number) && !changed_.WaitUntil(&mu_, deadline)) {
  }
  ASSIGN_OR_RETURN(const SaveRecord record, records_.Get(number));
  return Shown(record);
}

std::vector<SaveRecord> FollowingSaver::records() const {
  absl::MutexLock lock(&mu_);
  std::vector<SaveRecord> records;
  for (const SaveRecord& record : records_.all()) records.push_back(Shown(record));
  return records;
}

SaveCounts FollowingSaver::counts() const {
  absl::MutexLock lock(&mu_);
  return records_.counts();
}

// --- The thread ---

void FollowingSaver::Run() {
  while (const std::optional<Work> work = Take()) Save(*work);
}

void FollowingSaver::WaitUntil(SteadyTime deadline) const {
  changed_.WaitUntil(&mu_, After(SteadyNow(), Until(deadline, options_.clock->Now())));
}

std::optional<FollowingSaver::Work> FollowingSaver::Take() {
  absl::MutexLock lock(&mu_);
  while (!work_.has_value() && !stopped_) {
    WaitUntil(NextDeadline());
    CheckDeadlines();
  }
  return std::exchange(work_, std::nullopt);
}

SteadyTime FollowingSaver::NextDeadline() const {
  SteadyTime next = kNever;
  if (Waits()) next = under_way_->deadline;
  if (reported_.has_value()) next = std::min(next, reported_->deadline);
  return next;
}

void FollowingSaver::CheckDeadlines() {
  const SteadyTime now = options_.clock->Now();
  if (reported_.has_value() && now >= reported_->deadline) FinishReported(LateError());
  if (!Waits() || now < under_way_->deadline) return;
  Report(under_way_->order.id, LateError());
  Finish(under_way_, {.why = LateError()});
}

void FollowingSaver::Save(const Work& work) {
  const absl::StatusOr<PartReport> report = MakePart(work);
  absl::MutexLock lock(&mu_);
  if (under_way_->end.has_value()) return Finish(under_way_, SaveEnd(*under_way_->end));
  Report(work.order.id, report);
  // Node 0 has ended the reported save: otherwise it would not have let this one be written.
  if (reported_.has_value()) FinishReported(absl::UnavailableError("node 0 sent no result before the next save"));
  reported_ = std::exchange(under_way_, std::nullopt);
  reported_status_ = report.status();
}

absl::StatusOr<PartReport> FollowingSaver::MakePart(const Work& work) {
  const auto go_on = [&] { return CheckGoesOn(work); };
  const SteadyTime copy_begin = options_.clock->Now();
  const absl::Status copied = images_->Fill(work.state, go_on);
  {
    absl::MutexLock lock(&mu_);
    SaveRecord& record = present();
    record.copy = absl::FromChrono(options_.clock->Now() - copy_begin);
    record.stall = model_.copy_stall();
    record.state = SaveState::kWriting;
    if (copied.ok()) record.size_bytes = images_->file_bytes();
  }
  RETURN_IF_ERROR(copied);
  RETURN_IF_ERROR(AwaitPermission(work));
  ASSIGN_OR_RETURN(const HistoryId history, HistoryId::Parse(work.order.history_id));
  return images_->Write(ModelFolder(options_.root, model_.spec().name),
                        {.step = work.order.step, .history = history.value, .save_id = work.order.id}, go_on);
}

absl::Status FollowingSaver::AwaitPermission(const Work& work) {
  while (true) {
    RETURN_IF_ERROR(CheckGoesOn(work));
    absl::MutexLock lock(&mu_);
    if (under_way_->is_permitted) return absl::OkStatus();
    if (!given_up_ && !stopped_) WaitUntil(work.deadline);
  }
}

absl::Status FollowingSaver::CheckGoesOn(const Work& work) const {
  if (stopping_) return absl::CancelledError("the model is closed");
  if (given_up_) return absl::AbortedError("node 0 gave up the save");
  return options_.clock->Now() < work.deadline ? absl::OkStatus() : LateError();
}

absl::Status FollowingSaver::LateError() {
  return absl::DeadlineExceededError("the save timed out: node 0's deadline has passed");
}

}  // namespace paramshard::server
