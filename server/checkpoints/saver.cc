#include "server/checkpoints/saver.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/checkpoint/rank_file.h"
#include "kernels/base/status_macros.h"
#include "server/base/thread.h"
#include "server/checkpoints/checkpoint_choice.h"
#include "server/checkpoints/state_image.h"
#include "server/observe/log.h"

namespace paramshard::server {
namespace {

// Time for a save to notice that its deadline has passed.
constexpr absl::Duration kGrace = absl::Seconds(5);
// Node 0 orders no more than a few between two decisions.
constexpr size_t kRememberedOrders = 64;

// Returns why a commit is saved, if it is. `last_due` is when a save last fell due by time.
std::optional<SaveReason> ReasonFor(const SavePolicy& policy, const CommitAnswer& answer, bool asked, SteadyTime now,
                                    SteadyTime& last_due) {
  const bool by_time =
      policy.every_time > absl::ZeroDuration() && absl::FromChrono(now - last_due) >= policy.every_time;
  if (by_time) last_due = now;
  if (asked) return SaveReason::kTrainer;
  if (policy.every_commits > 0 && answer.commit_number % policy.every_commits == 0) return SaveReason::kCommits;
  if (by_time) return SaveReason::kTime;
  return std::nullopt;
}

absl::Status ClosedError(const std::string& model) {
  return absl::CancelledError(absl::StrCat("save ", model, ": the model is closed"));
}

}  // namespace

// --- From start to end ---

absl::StatusOr<std::unique_ptr<Saver>> Saver::Create(Model& model, const Options& options,
                                                     SaverSource::FolderTrouble trouble) {
  auto saver = std::unique_ptr<Saver>(new Saver(model, options));
  RETURN_IF_ERROR(saver->Open(trouble));
  return saver;
}

Saver::Saver(Model& model, const Options& options)
    : model_(model),
      options_(options),
      folder_(options.leads
                  ? std::make_unique<CheckpointFolder>(model, CheckpointFolder::Options{.root = options.root,
                                                                                        .keep = options.policy.keep,
                                                                                        .calls = options.calls,
                                                                                        .now = options.now})
                  : nullptr),
      records_(model.spec().name, *model.world().metrics),
      last_due_(options.clock->Now()) {}

absl::Status Saver::Open(SaverSource::FolderTrouble trouble) {
  if (const absl::Status opened = folder_ != nullptr ? folder_->Open() : absl::OkStatus(); !opened.ok()) {
    if (trouble == SaverSource::FolderTrouble::kIsRefused) return opened;
    Log(LogLevel::kError, "cannot save model", {{"model", model_.spec().name}, {"why", opened.ToString()}});
  }
  ASSIGN_OR_RETURN(images_, DaemonImages::Create(model_, options_.calls, options_.before_copy));
  ASSIGN_OR_RETURN(std::thread thread, StartThread("saves of " + model_.spec().name, [this] {
                     while (const std::optional<Work> work = Take()) Save(*work);
                   }));
  absl::MutexLock lock(&mu_);
  thread_ = std::move(thread);
  return absl::OkStatus();
}

Saver::~Saver() { Stop(); }

void Saver::Stop() {
  const absl::Status why = ClosedError(model_.spec().name);
  std::thread thread;
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
    // A drain does not wait for an answer: the model receives no more messages.
    request_open_ = false;
    if (under_way_.has_value() && under_way_->agreement != nullptr) under_way_->agreement->Fail(why);
    if (Waits()) GiveUp(why);
    thread = std::move(thread_);
    changed_.SignalAll();
  }
  if (!thread.joinable()) return;
  thread.join();
  if (folder_ != nullptr) folder_->Close();
  absl::MutexLock lock(&mu_);
  if (reported_.has_value()) FinishReported(why);
}

template <typename What>
absl::Status Saver::Tell(const What& what) const {
  return model_.world().cluster->Send(SaveMessage{.model = model_.spec().name, .what = what});
}

absl::Status Saver::CheckIdle(absl::string_view operation) const {
  absl::MutexLock lock(&mu_);
  return CheckNoneUnderWay(operation);
}

absl::Status Saver::CheckNoneUnderWay(absl::string_view operation) const {
  if (!under_way_.has_value() && !reported_.has_value()) return absl::OkStatus();
  const int64_t number = (under_way_.has_value() ? under_way_ : reported_)->number;
  return absl::UnavailableError(absl::StrCat(operation, " ", model_.spec().name, ": the save of step ",
                                             records_.Find(number)->step,
                                             " is in progress; try again when it is done"));
}

// Node 0 saves for all, whether it drains too or not.
void Saver::Drain(SteadyTime deadline) {
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      if (!AwaitIdle(deadline)) return;
    }
    // IsDrained looks at the disk: files that this process has published may have been deleted since.
    if (IsDrained()) return;
    const int64_t step = model_.state().snapshot().numbers.commit_number;
    absl::MutexLock lock(&mu_);
    if (stopped_) return;
    // Another daemon that drains has asked for a save meanwhile.
    if (under_way_.has_value() || reported_.has_value() || request_open_) continue;
    if (options_.leads) {
      Begin(SaveReason::kDrain, step);
    } else {
      request_open_ = Tell(SaveRequest()).ok();
    }
    AwaitIdle(deadline);
    return;
  }
}

bool Saver::IsDrained() const {
  if (!options_.policy.on_drain || model_.state().untouched()) return true;
  const StateNumbers numbers = model_.state().snapshot().numbers;
  return HasWholeCheckpoint(options_.root, model_.spec().name, numbers.commit_number, numbers.history.value);
}

bool Saver::AwaitIdle(SteadyTime deadline) const {
  const auto is_idle = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return !under_way_.has_value() && !reported_.has_value() && !request_open_;
  };
  while (!is_idle() && !changed_.WaitUntil(&mu_, deadline)) {
  }
  return is_idle();
}

// --- When saves fall due ---

void Saver::OnCommitted(const CommitAnswer& answer, bool asked) {
  absl::MutexLock lock(&mu_);
  if (stopped_) return;
  std::optional<SaveReason> reason;
  if (options_.leads) reason = ReasonFor(options_.policy, answer, asked, options_.clock->Now(), last_due_);
  // A save that waits is of this commit: anything due with it is the same save.
  if (Waits()) return Hold(/*settled=*/false);
  if (reason.has_value()) Begin(*reason, answer.commit_number);
}

void Saver::OnSettled() {
  absl::MutexLock lock(&mu_);
  if (Waits()) Hold(/*settled=*/true);
}

absl::StatusOr<SaveRecord> Saver::Request() {
  if (!options_.leads) {
    return absl::FailedPreconditionError(absl::StrCat("save ", model_.spec().name,
                                                      ": only node 0 starts saves, this is node ",
                                                      model_.world().cluster->node(), "; call node 0"));
  }
  const int64_t step = model_.committed().commits.numbers().commit_number;
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(CheckNoneUnderWay("save"));
  if (stopped_) return absl::UnavailableError(absl::StrCat("save ", model_.spec().name, ": the model is closed"));
  Begin(SaveReason::kCall, step);
  return Shown(records_.all().back());
}

void Saver::TakeRequest() {
  const StateSnapshot state = model_.state().snapshot();
  const bool untouched = model_.state().untouched();
  absl::MutexLock lock(&mu_);
  // The end of the save in progress is an answer too.
  if (under_way_.has_value()) return;
  if (options_.policy.on_drain && !stopped_ && !untouched && !folder_->IsSaved(state.numbers)) {
    return Begin(SaveReason::kDrain, state.numbers.commit_number);
  }
  Tell(SaveEnd{}).IgnoreError();
}

void Saver::Begin(SaveReason reason, int64_t step) {
  SaveRecord record{.reason = reason, .step = step, .begun_at = options_.now()};
  if (under_way_.has_value()) {
    record.state = SaveState::kSkipped;
    record.status = absl::UnavailableError(absl::StrCat("the save of step ", records_.Find(under_way_->number)->step,
                                                        " was still in progress: the disk is slow, or saves "
                                                        "are due too often"));
    return records_.Close(records_.Add(std::move(record)));
  }
  under_way_ = UnderWay{.number = records_.Add(std::move(record)).number, .begun = options_.clock->Now()};
  images_->Restart();
  Hold(/*settled=*/true);
}

// --- The state ---

void Saver::Hold(bool settled) {
  absl::StatusOr<HeldState> state = model_.state().Hold();
  if (absl::IsAborted(state.status())) return;
  absl::Status status = state.status();
  if (status.ok()) {
    status = options_.leads ? Order(*state) : CheckIsOrdered(*state, settled);
    if (!status.ok()) model_.copies().EndCopies();
    // Another state is saved instead, which is still to come.
    if (absl::IsAborted(status)) return;
  }
  if (!status.ok()) return GiveUp(status);
  under_way_->is_held = true;
  SaveRecord& record = *records_.Find(under_way_->number);
  record.state = SaveState::kCopying;
  record.step = state->numbers.commit_number;
  record.history = state->numbers.history;
  const SaveOrder& order = under_way_->order;
  work_ =
      Work{.identity = {.step = order.step, .history = HistoryId::Parse(order.history_id)->value, .save_id = order.id},
           .agreement = under_way_->agreement,
           .state = *std::move(state)};
  changed_.SignalAll();
}

absl::Status Saver::Order(const HeldState& state) {
  Cluster& cluster = *model_.world().cluster;
  const StateNumbers& numbers = state.numbers;
  const SteadyTime deadline = After(under_way_->begun, options_.policy.timeout);
  const SaveOrder order{.id = options_.draw_id().value,
                        .step = numbers.commit_number,
                        .version = numbers.version,
                        .lineage = model_.state().history().lineage.ToString(),
                        .history_id = numbers.history.ToString(),
                        .spec_fingerprint = model_.fingerprint(),
                        .reason = records_.Find(under_way_->number)->reason,
                        .timeout = Until(deadline, options_.clock->Now())};
  const absl::Status told = Tell(order);
  // Saves alone if this daemon has all of the state, and others may be away.
  const bool alone =
      absl::IsUnavailable(told) && cluster.may_be_fewer() && model_.world().rank_count() % model_.layout().ranks() == 0;
  if (!told.ok() && !alone) return told;
  if (alone) {
    Log(LogLevel::kInfo, "saving on node 0 alone",
        {{"model", model_.spec().name}, {"step", absl::StrCat(order.step)}, {"why", told.ToString()}});
  }
  under_way_->order = order;
  SaveAgreement::Options agreement{.role = alone ? SaveAgreement::Role::kAlone : SaveAgreement::Role::kLeader,
                                   .cluster = &cluster,
                                   .model = model_.spec().name,
                                   .id = order.id,
                                   .timeout = options_.policy.timeout,
                                   .deadline = deadline,
                                   .clock = options_.clock};
  under_way_->agreement = std::make_shared<SaveAgreement>(std::move(agreement));
  return absl::OkStatus();
}

absl::Status Saver::CheckIsOrdered(const HeldState& state, bool settled) const {
  const SaveOrder& order = under_way_->order;
  const History history = model_.state().history();
  if (!settled && state.numbers.commit_number < order.step) return absl::AbortedError("its commit is still to come");
  if (model_.fingerprint() != order.spec_fingerprint) {
    return absl::FailedPreconditionError("the spec differs from node 0's spec");
  }
  if (state.numbers.commit_number != order.step || state.numbers.version != order.version) {
    return absl::FailedPreconditionError(absl::StrCat("want commit ", order.step, " (version ", order.version,
                                                      ") as at node 0, got commit ", state.numbers.commit_number,
                                                      " (version ", state.numbers.version, ")"));
  }
  RETURN_IF_ERROR(HistoryId::Parse(order.history_id).status());
  if (history.id.ToString() == order.history_id) return absl::OkStatus();
  // Nothing tells the two histories apart yet, as when an epoch starts.
  if (model_.state().untouched() && history.lineage.ToString() == order.lineage) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("want history ", order.history_id, " as at node 0, got ",
                                                    history.id.ToString(),
                                                    ": import or restore the same at all daemons"));
}

void Saver::GiveUp(const absl::Status& why) {
  if (!options_.leads) Report(under_way_->order.id, why);
  Finish(under_way_, {.why = why});
}

// --- What other daemons say ---

void Saver::OnMessage(const SaveMessage& message) {
  if (std::holds_alternative<SaveRequest>(message.what)) return options_.leads ? TakeRequest() : void();
  absl::MutexLock lock(&mu_);
  const auto is_under_way = [this](absl::uint128 id) ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return under_way_.has_value() && under_way_->agreement != nullptr && under_way_->order.id == id;
  };
  if (options_.leads) {
    // A decision brings node 0 its own order too.
    const auto* const part = std::get_if<SavePart>(&message.what);
    if (part != nullptr && is_under_way(part->id)) under_way_->agreement->OnPart(*part);
    return;
  }
  if (const auto* const go = std::get_if<SavePermission>(&message.what); go != nullptr && is_under_way(go->id)) {
    under_way_->agreement->OnPermission();
  }
  if (const auto* const order = std::get_if<SaveOrder>(&message.what); order != nullptr) TakeOrder(*order);
  if (const auto* const end = std::get_if<SaveEnd>(&message.what); end != nullptr) TakeEnd(*end);
  if (const auto* const loss = std::get_if<SaveLeaderLost>(&message.what); loss != nullptr) {
    if (reported_.has_value()) FinishReported(loss->why);
    TakeEnd({.id = under_way_.has_value() ? under_way_->order.id : 0, .why = loss->why});
  }
}

void Saver::TakeOrder(const SaveOrder& order) {
  // An order that comes with a decision may arrive after later orders of the stream.
  if (absl::c_linear_search(taken_orders_, order.id)) return;
  taken_orders_.push_back(order.id);
  if (taken_orders_.size() > kRememberedOrders) taken_orders_.pop_front();
  if (stopped_) return Report(order.id, ClosedError(model_.spec().name));
  if (under_way_.has_value()) {
    return Report(order.id, absl::UnavailableError(absl::StrCat("the save of step ", under_way_->order.step,
                                                                " is still in progress there")));
  }
  const SteadyTime now = options_.clock->Now();
  under_way_ = UnderWay{
      .number = records_.Add({.reason = order.reason, .step = order.step, .begun_at = options_.now()}).number,
      .begun = now,
      .order = order,
      .agreement = std::make_shared<SaveAgreement>(SaveAgreement::Options{.role = SaveAgreement::Role::kFollower,
                                                                          .cluster = model_.world().cluster,
                                                                          .model = model_.spec().name,
                                                                          .id = order.id,
                                                                          .deadline = After(now, order.timeout),
                                                                          .clock = options_.clock})};
  images_->Restart();
  Hold(model_.trainers().idle());
}

void Saver::TakeEnd(const SaveEnd& end) {
  request_open_ = false;
  changed_.SignalAll();
  if (reported_.has_value() && reported_->order.id == end.id) return Finish(reported_, end);
  if (!under_way_.has_value() || under_way_->order.id != end.id) return;
  if (Waits()) return Finish(under_way_, end);
  // The thread checks whether to go on, and ends the save then.
  under_way_->end = end;
  under_way_->agreement->Fail(absl::AbortedError("node 0 gave up the save"));
}

void Saver::Report(absl::uint128 id, const absl::StatusOr<PartReport>& part) const {
  // If this does not reach node 0, node 0 has lost this node, and with it the save.
  Tell(SavePart{.id = id, .hash = part.ok() ? part->hash : 0, .status = part.status()}).IgnoreError();
}

// Node 0 may have published the save if this daemon's part is whole.
void Saver::FinishReported(const absl::Status& why) {
  const bool is_whole = reported_->part.ok();
  Finish(reported_,
         {.state = is_whole ? SaveState::kUnknown : SaveState::kAbandoned, .why = is_whole ? why : reported_->part});
}

void Saver::CheckDeadlines() {
  const auto late = [this](const UnderWay& save) {
    const bool is_late = save.agreement != nullptr && options_.clock->Now() >= save.agreement->deadline();
    return is_late ? save.agreement->CheckContinue() : absl::OkStatus();
  };
  if (reported_.has_value()) {
    if (const absl::Status why = late(*reported_); !why.ok()) FinishReported(why);
  }
  if (Waits()) {
    if (const absl::Status why = late(*under_way_); !why.ok()) GiveUp(why);
  }
}

// --- Records ---

void Saver::Finish(std::optional<UnderWay>& save, const SaveEnd& end) {
  SaveRecord& record = *records_.Find(save->number);
  record = Shown(record);
  record.state = end.state;
  record.status = end.why;
  record.path = end.path;
  if (!end.path.empty()) record.size_bytes = end.size_bytes;
  const absl::StatusOr<HistoryId> history = HistoryId::Parse(save->order.history_id);
  if (history.ok()) record.history = *history;
  records_.Close(record);
  if (options_.leads) {
    // A node that this does not reach notices the end by itself.
    Tell(SaveEnd{.id = save->order.id,
                 .state = record.state,
                 .path = record.path,
                 .size_bytes = record.size_bytes,
                 .why = record.status})
        .IgnoreError();
  }
  save.reset();
  changed_.SignalAll();
}

SaveRecord Saver::Shown(const SaveRecord& record) const {
  SaveRecord shown = record;
  if (IsOver(record.state)) return shown;
  const bool is_reported = reported_.has_value() && reported_->number == record.number;
  const UnderWay& save = is_reported ? *reported_ : *under_way_;
  const SteadyTime now = options_.clock->Now();
  shown.took = absl::FromChrono(now - save.begun);
  shown.written_bytes = is_reported ? record.size_bytes : images_->written_bytes();
  if (options_.leads && now >= After(save.begun, options_.policy.timeout + kGrace)) {
    shown.status = absl::DeadlineExceededError(absl::StrCat("save ", model_.spec().name, ": timed out after ",
                                                            absl::FormatDuration(options_.policy.timeout),
                                                            ": a call of the file system does not come back"));
  }
  return shown;
}

absl::StatusOr<SaveRecord> Saver::Await(int64_t number, SteadyTime deadline) const {
  absl::MutexLock lock(&mu_);
  bool is_late = false;
  while (true) {
    ASSIGN_OR_RETURN(const SaveRecord record, records_.Get(number));
    const SaveRecord shown = Shown(record);
    // A status of a save in progress says that it is stuck.
    if (IsOver(shown.state) || !shown.status.ok() || is_late) return shown;
    is_late = changed_.WaitUntil(&mu_, deadline);
  }
}

std::vector<SaveRecord> Saver::records() const {
  absl::MutexLock lock(&mu_);
  std::vector<SaveRecord> records;
  for (const SaveRecord& record : records_.all()) records.push_back(Shown(record));
  return records;
}

SaveCounts Saver::counts() const {
  absl::MutexLock lock(&mu_);
  SaveCounts counts = records_.counts();
  if (folder_ != nullptr) folder_->AddTo(counts);
  return counts;
}

// --- The thread ---

std::optional<Saver::Work> Saver::Take() {
  absl::MutexLock lock(&mu_);
  while (!work_.has_value() && !stopped_) {
    SteadyTime next = kNever;
    if (Waits() && under_way_->agreement != nullptr) next = under_way_->agreement->deadline();
    if (reported_.has_value()) next = std::min(next, reported_->agreement->deadline());
    changed_.WaitUntil(&mu_, After(SteadyNow(), Until(next, options_.clock->Now())));
    CheckDeadlines();
  }
  return std::exchange(work_, std::nullopt);
}

void Saver::Save(const Work& work) {
  const absl::Status copied = Copy(work);
  if (options_.leads) {
    const SaveEnd end = copied.ok()
                            ? folder_->Save(work.identity, work.state, images_->world(), [&] { return WriteAll(work); })
                            : SaveEnd{.why = copied};
    absl::MutexLock lock(&mu_);
    return Finish(under_way_, end);
  }
  const absl::StatusOr<PartReport> part = copied.ok() ? WritePart(work) : copied;
  absl::MutexLock lock(&mu_);
  if (under_way_->end.has_value()) return Finish(under_way_, SaveEnd(*under_way_->end));
  Report(work.identity.save_id, part);
  // Node 0 has ended the reported save: otherwise it would not have let this one be written.
  if (reported_.has_value()) FinishReported(absl::UnavailableError("node 0 sent no result before the next save"));
  reported_ = std::exchange(under_way_, std::nullopt);
  reported_->part = part.status();
}

absl::Status Saver::Copy(const Work& work) {
  const SteadyTime begin = options_.clock->Now();
  absl::Status copied = images_->Select(work.agreement->role() == SaveAgreement::Role::kAlone);
  if (copied.ok()) {
    images_->Restart();
    copied = images_->Fill(work.state, [&] { return work.agreement->CheckContinue(); });
  } else {
    model_.copies().EndCopies();
  }
  absl::MutexLock lock(&mu_);
  SaveRecord& record = *records_.Find(under_way_->number);
  record.copy = absl::FromChrono(options_.clock->Now() - begin);
  record.stall = model_.copies().stall();
  record.state = SaveState::kWriting;
  if (copied.ok()) record.size_bytes = images_->file_bytes();
  return copied;
}

absl::StatusOr<PartReport> Saver::WritePart(const Work& work) {
  RETURN_IF_ERROR(work.agreement->AgreeToWrite());
  return images_->Write(ModelFolder(options_.root, model_.spec().name), work.identity,
                        [&] { return work.agreement->CheckContinue(); });
}

absl::StatusOr<std::vector<PartReport>> Saver::WriteAll(const Work& work) {
  ASSIGN_OR_RETURN(const PartReport own, WritePart(work));
  ASSIGN_OR_RETURN(std::vector<PartReport> parts, work.agreement->AwaitParts());
  parts.insert(parts.begin(), own);
  // The last call of the disk may have taken longer than the deadline.
  RETURN_IF_ERROR(work.agreement->CheckContinue());
  return parts;
}

// --- All models ---

absl::StatusOr<std::vector<int64_t>> Savers::ImageBytes(const Layout& layout, const World& world) const {
  std::vector<int64_t> bytes;
  for (int rank = 0; rank < world.rank_count(); ++rank) {
    ASSIGN_OR_RETURN(const checkpoint::RankFilePlan plan,
                     checkpoint::RankFilePlan::Create(layout, WorldOf(layout, world), world.first_rank + rank));
    bytes.push_back(StateImage::SizeOf(plan));
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<ModelSaver>> Savers::Make(Model& model, FolderTrouble trouble) const {
  Saver::Options options = options_;
  options.leads = model.world().cluster->node() == 0;
  return Saver::Create(model, options, trouble);
}

}  // namespace paramshard::server
