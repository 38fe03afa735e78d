#include "server/checkpoints/saver.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/checkpoint/common_state.h"
#include "common/checkpoint/rank_file.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "server/base/thread.h"
#include "server/checkpoints/checkpoint_choice.h"
#include "server/checkpoints/following_saver.h"
#include "server/checkpoints/node_error.h"
#include "server/checkpoints/save_folder.h"
#include "server/checkpoints/state_image.h"
#include "server/observe/log.h"

namespace paramshard::server {
namespace {

checkpoint::BookEntry EntryOf(const ScalingBook::Record& record) {
  checkpoint::BookEntry entry{.unit = record.unit,
                              .parameter = record.parameter,
                              .amax = record.amax,
                              .scale = record.scale,
                              .is_fresh = record.is_fresh};
  if (record.history.has_value()) {
    entry.delayed = {.next_scale = record.history->scale, .history = record.history->amaxes};
  }
  return entry;
}

checkpoint::CommonState CommonOf(const Model::HeldState& state) {
  const CommitLog::Numbers& numbers = state.commits.numbers;
  checkpoint::CommonState common{
      .commit_number = numbers.commit_number, .version = numbers.version, .skipped = numbers.skipped};
  if (const std::optional<CommitAnswer>& answer = state.commits.last_answer; answer.has_value()) {
    common.last_answer = {.skipped = answer->skipped,
                          .gradient_norm = answer->gradient_norm,
                          .non_finite_count = answer->non_finite_count};
  }
  for (const ScalingBook::Record& record : state.scaling) common.book.push_back(EntryOf(record));
  return common;
}

std::optional<checkpoint::Manifest::Parent> ParentOf(const Model::HeldState& state) {
  if (!state.parent.has_value()) return std::nullopt;
  return checkpoint::Manifest::Parent{.history = state.parent->history.value, .step = state.parent->commit_number};
}

SaveState StateOf(SaveOutcome outcome) {
  switch (outcome) {
    case SaveOutcome::kPublished:
      return SaveState::kPublished;
    case SaveOutcome::kAlreadySaved:
      return SaveState::kAlreadySaved;
    case SaveOutcome::kAbandoned:
      return SaveState::kAbandoned;
    case SaveOutcome::kUnknown:
      break;
  }
  return SaveState::kUnknown;
}

// Time for a save to notice that its deadline has passed.
constexpr absl::Duration kGrace = absl::Seconds(5);

Publisher::Result Abandoned(const absl::Status& status) {
  return {.outcome = SaveOutcome::kAbandoned, .status = status};
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
      opened_at_(options.clock->Now()),
      last_due_(opened_at_),
      records_(model.spec().name, *model.world().metrics) {}

absl::Status Saver::Open(SaverSource::FolderTrouble trouble) {
  if (const absl::Status opened = OpenFolder(); !opened.ok()) {
    if (trouble == SaverSource::FolderTrouble::kIsRefused) return opened;
    Log(LogLevel::kError, "cannot save model", {{"model", model_.spec().name}, {"why", opened.ToString()}});
  }
  ASSIGN_OR_RETURN(images_, DaemonImages::Create(model_, options_.calls, options_.before_copy));
  image_bytes_ = images_->memory_bytes();
  ASSIGN_OR_RETURN(std::thread thread, StartThread("saves of " + model_.spec().name, [this] { Run(); }));
  absl::MutexLock lock(&mu_);
  thread_ = std::move(thread);
  return absl::OkStatus();
}

absl::Status Saver::OpenFolder() {
  absl::StatusOr<std::unique_ptr<Publisher>> opened = Publisher::Open(options_.calls, options_.root, model_.spec());
  {
    absl::MutexLock lock(&mu_);
    folder_ = opened.status();
  }
  RETURN_IF_ERROR(opened.status());
  publisher_ = *std::move(opened);
  NoteLeftovers();
  // The previous server may have saved the state that it left.
  const StateNumbers numbers = model_.state().numbers;
  const Publisher::Result found =
      publisher_->FindSaved({.step = numbers.commit_number, .history = numbers.history.value});
  absl::MutexLock lock(&mu_);
  if (found.outcome == SaveOutcome::kAlreadySaved) saved_ = numbers;
  return absl::OkStatus();
}

Saver::~Saver() { Stop(); }

void Saver::Stop() {
  stopping_ = true;
  std::thread thread;
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
    if (waiting_) Finish(Abandoned(absl::CancelledError("save: the model is closed")));
    thread = std::move(thread_);
    changed_.SignalAll();
  }
  if (!thread.joinable()) return;
  thread.join();
  publisher_.reset();
}

int64_t Saver::image_bytes() const { return image_bytes_; }

// --- When saves fall due ---

std::optional<SaveReason> Saver::ReasonFor(const CommitAnswer& answer, bool asked) {
  const SavePolicy& policy = options_.policy;
  const SteadyTime now = options_.clock->Now();
  const bool by_time =
      policy.every_time > absl::ZeroDuration() && absl::FromChrono(now - last_due_) >= policy.every_time;
  if (by_time) last_due_ = now;
  if (asked) return SaveReason::kTrainer;
  if (policy.every_commits > 0 && answer.commit_number % policy.every_commits == 0) return SaveReason::kCommits;
  if (by_time) return SaveReason::kTime;
  return std::nullopt;
}

void Saver::OnCommitted(const CommitAnswer& answer, bool asked) {
  absl::MutexLock lock(&mu_);
  if (stopped_) return;
  const std::optional<SaveReason> reason = ReasonFor(answer, asked);
  // A save that waits is of this commit: anything due with it is the same save.
  if (waiting_) return Hold();
  if (reason.has_value()) Begin(*reason, answer.commit_number);
}

void Saver::OnSettled() {
  absl::MutexLock lock(&mu_);
  if (waiting_) Hold();
}

absl::StatusOr<SaveRecord> Saver::Request() {
  const int64_t step = model_.commit_log().numbers().commit_number;
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(CheckNoneUnderWay("save"));
  if (stopped_) return absl::UnavailableError(absl::StrCat("save ", model_.spec().name, ": the model is closed"));
  Begin(SaveReason::kCall, step);
  return Shown(records_.all().back());
}

absl::Status Saver::CheckIdle(absl::string_view operation) const {
  absl::MutexLock lock(&mu_);
  return CheckNoneUnderWay(operation);
}

absl::Status Saver::CheckNoneUnderWay(absl::string_view operation) const {
  if (!under_way_.has_value()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(operation, " ", model_.spec().name, ": the save of step ",
                                             records_.Find(*under_way_)->step,
                                             " is in progress; try again when it is done"));
}

void Saver::Begin(SaveReason reason, int64_t step) {
  SaveRecord record{.reason = reason, .step = step, .begun_at = options_.now()};
  if (under_way_.has_value()) {
    record.state = SaveState::kSkipped;
    record.status = absl::UnavailableError(absl::StrCat("the save of step ", records_.Find(*under_way_)->step,
                                                        " was still in progress: the disk is slow, or saves "
                                                        "are due too often"));
    return records_.Close(records_.Add(std::move(record)));
  }
  under_way_ = records_.Add(std::move(record)).number;
  waiting_ = true;
  ordered_.reset();
  parts_.clear();
  part_failed_ = false;
  images().Restart();
  begun_ = options_.clock->Now();
  Hold();
}

void Saver::Hold() {
  absl::StatusOr<Model::HeldState> state = model_.HoldState();
  if (absl::IsAborted(state.status())) return;
  if (!state.ok()) return Finish(Abandoned(state.status()));
  Work work{.number = *under_way_,
            .identity = {.step = state->numbers.commit_number,
                         .history = state->numbers.history.value,
                         .save_id = options_.draw_id().value},
            .deadline = After(begun_, options_.policy.timeout),
            .state = *std::move(state)};
  if (const absl::Status ordered = Order(work); !ordered.ok()) {
    model_.ReleaseState();
    // The next commit is decided, and perhaps applied elsewhere: it is saved instead.
    if (!absl::IsAborted(ordered)) Finish(Abandoned(ordered));
    return;
  }
  waiting_ = false;
  SaveRecord& record = present();
  record.state = SaveState::kCopying;
  record.step = work.state.numbers.commit_number;
  record.history = work.state.numbers.history;
  work_ = std::move(work);
  changed_.SignalAll();
}

// --- Other daemons ---

absl::Status Saver::Order(Work& work) {
  const StateNumbers& numbers = work.state.numbers;
  const absl::Status told =
      cluster().TellSave({.model = model_.spec().name,
                          .what = SaveOrder{.id = work.identity.save_id,
                                            .step = numbers.commit_number,
                                            .version = numbers.version,
                                            .lineage = model_.history().lineage.ToString(),
                                            .history_id = numbers.history.ToString(),
                                            .spec_fingerprint = model_.fingerprint(),
                                            .reason = present().reason,
                                            .timeout = Until(work.deadline, options_.clock->Now())}});
  work.alone = absl::IsUnavailable(told) && MaySaveAlone();
  if (!told.ok() && !work.alone) return told;
  if (work.alone) {
    Log(LogLevel::kInfo, "saving on node 0 alone",
        {{"model", model_.spec().name}, {"step", absl::StrCat(numbers.commit_number)}, {"why", told.ToString()}});
  }
  ordered_ = work.identity.save_id;
  return absl::OkStatus();
}

bool Saver::MaySaveAlone() const {
  return cluster().may_be_fewer() && model_.world().rank_count() % model_.layout().ranks() == 0;
}

void Saver::OnNews(const SaveNews& news) {
  if (std::holds_alternative<SaveWish>(news.what)) return TakeWish();
  const auto* const part = std::get_if<SavePart>(&news.what);
  if (part == nullptr) return;
  absl::MutexLock lock(&mu_);
  TakePart(*part);
}

void Saver::TakePart(const SavePart& part) {
  if (!under_way_.has_value() || ordered_ != part.id) return;
  SavePart taken = part;
  if (!part.status.ok()) taken.status = OfNode(part.node, part.status);
  if (!parts_.emplace(part.node, std::move(taken)).second) return;
  if (!part.status.ok()) part_failed_ = true;
  changed_.SignalAll();
}

void Saver::TakeWish() {
  const Model::State state = model_.state();
  const bool untouched = model_.untouched();
  absl::MutexLock lock(&mu_);
  // The end of the save in progress is an answer too.
  if (under_way_.has_value()) return;
  if (options_.policy.on_drain && !stopped_ && !untouched && !IsSaved(state.numbers)) {
    return Begin(SaveReason::kDrain, state.numbers.commit_number);
  }
  cluster().TellSave({.model = model_.spec().name, .what = SaveEnd{}}).IgnoreError();
}

void Saver::TellEnd(const SaveRecord& record) {
  // A node that this does not reach notices the end by itself.
  cluster()
      .TellSave({.model = model_.spec().name,
                 .what = SaveEnd{.id = ordered_.value_or(0),
                                 .state = record.state,
                                 .path = record.path,
                                 .size_bytes = record.size_bytes,
                                 .why = record.status}})
      .IgnoreError();
}

bool Saver::IsSaved(const StateNumbers& numbers) const {
  return saved_.has_value() && saved_->history == numbers.history && saved_->commit_number == numbers.commit_number;
}

void Saver::Drain(SteadyTime deadline) {
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      if (!AwaitOver(deadline)) return;
    }
    // IsDrained looks at the disk: files that this process has published may have been deleted since.
    if (IsDrained()) return;
    const int64_t step = model_.state().numbers.commit_number;
    absl::MutexLock lock(&mu_);
    if (stopped_) return;
    // Another daemon that drains has asked for a save meanwhile.
    if (under_way_.has_value()) continue;
    Begin(SaveReason::kDrain, step);
    AwaitOver(deadline);
    return;
  }
}

bool Saver::IsDrained() const {
  if (!options_.policy.on_drain || model_.untouched()) return true;
  const StateNumbers numbers = model_.state().numbers;
  return HasWholeCheckpoint(options_.root, model_.spec().name, numbers.commit_number, numbers.history.value);
}

bool Saver::AwaitOver(SteadyTime deadline) const {
  while (under_way_.has_value() && !changed_.WaitUntil(&mu_, deadline)) {
  }
  return !under_way_.has_value();
}

// --- Records ---

SaveRecord Saver::Shown(const SaveRecord& record) const {
  SaveRecord shown = record;
  if (IsOver(record.state)) return shown;
  shown.took = absl::FromChrono(options_.clock->Now() - begun_);
  shown.written_bytes = images().written_bytes();
  if (IsStuck()) {
    shown.status = absl::DeadlineExceededError(absl::StrCat("save ", model_.spec().name, ": timed out after ",
                                                            absl::FormatDuration(options_.policy.timeout),
                                                            ": a call of the file system does not come back"));
  }
  return shown;
}

bool Saver::IsStuck() const {
  return under_way_.has_value() && options_.clock->Now() >= After(begun_, options_.policy.timeout + kGrace);
}

void Saver::Finish(const Publisher::Result& result) {
  SaveRecord& record = present();
  record = Shown(record);
  record.state = StateOf(result.outcome);
  record.status = result.status;
  record.path = result.path;
  if (!result.path.empty()) record.size_bytes = result.size_bytes;
  if (HasCheckpoint(record.state)) {
    saved_ = StateNumbers{.history = record.history, .commit_number = record.step};
  }
  records_.Close(record);
  TellEnd(record);
  under_way_.reset();
  waiting_ = false;
  changed_.SignalAll();
}

absl::StatusOr<SaveRecord> Saver::Await(int64_t number, SteadyTime deadline) const {
  absl::MutexLock lock(&mu_);
  while (under_way_ == number && !IsStuck() && !changed_.WaitUntil(&mu_, deadline)) {
  }
  ASSIGN_OR_RETURN(const SaveRecord record, records_.Get(number));
  return Shown(record);
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
  counts.leftovers = leftovers_;
  counts.folder = folder_;
  return counts;
}

void Saver::NoteLeftovers() {
  absl::MutexLock lock(&mu_);
  if (publisher_ == nullptr || publisher_->leftovers() == leftovers_) return;
  leftovers_ = publisher_->leftovers();
  if (leftovers_.ok()) return;
  Log(LogLevel::kWarning, "failed to delete leftovers of saves",
      {{"model", model_.spec().name}, {"why", leftovers_.ToString()}});
}

// --- The thread ---

void Saver::Run() {
  while (const std::optional<Work> work = Take()) Save(*work);
}

std::optional<Saver::Work> Saver::Take() {
  absl::MutexLock lock(&mu_);
  while (!work_.has_value() && !stopped_) changed_.Wait(&mu_);
  return std::exchange(work_, std::nullopt);
}

void Saver::Save(const Work& work) {
  const auto go_on = [&] { return CheckGoesOn(work); };
  const SteadyTime copy_begin = options_.clock->Now();
  absl::Status copied = TakeImages(work.alone);
  if (copied.ok()) {
    images().Restart();
    copied = images().Fill(work.state, go_on);
  } else {
    model_.ReleaseState();
  }
  {
    absl::MutexLock lock(&mu_);
    SaveRecord& record = present();
    record.copy = absl::FromChrono(options_.clock->Now() - copy_begin);
    record.stall = model_.copy_stall();
    record.state = SaveState::kWriting;
    if (copied.ok()) record.size_bytes = images().file_bytes();
  }
  const Publisher::Result result = copied.ok() ? Write(work) : Abandoned(copied);
  // The save succeeds even if older checkpoints cannot be deleted; its caller finds the deleted ones gone.
  if (result.outcome == SaveOutcome::kPublished) Retain();
  NoteLeftovers();
  absl::MutexLock lock(&mu_);
  Finish(result);
}

absl::Status Saver::TakeImages(bool alone) {
  if (alone == (own_images_ != nullptr)) return absl::OkStatus();
  std::unique_ptr<DaemonImages> own;
  if (alone) {
    ASSIGN_OR_RETURN(own, DaemonImages::Create(model_, options_.calls, options_.before_copy, /*alone=*/true));
  }
  image_bytes_ = images_->memory_bytes() + (alone ? own->memory_bytes() : 0);
  absl::MutexLock lock(&mu_);
  own_images_.swap(own);
  return absl::OkStatus();
}

absl::Status Saver::CheckGoesOn(const Work& work) const {
  const std::string& name = model_.spec().name;
  if (stopping_) return absl::CancelledError(absl::StrCat("save ", name, ": the model is closed"));
  if (part_failed_) {
    absl::MutexLock lock(&mu_);
    for (const auto& [node, part] : parts_) {
      if (!part.status.ok()) return part.status;
    }
  }
  if (options_.clock->Now() < work.deadline) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("save ", name, ": timed out after ", absl::FormatDuration(options_.policy.timeout)));
}

Publisher::Result Saver::Write(const Work& work) {
  const checkpoint::World world =
      work.alone ? DaemonsOwnWorld(model_.layout(), model_.world()) : WorldOf(model_.layout(), model_.world());
  if (publisher_ != nullptr && !publisher_->HoldsFolder()) publisher_.reset();
  if (publisher_ == nullptr) {
    // An operator may have repaired the folder meanwhile.
    if (const absl::Status opened = OpenFolder(); !opened.ok()) return Abandoned(opened);
  }
  const absl::StatusOr<std::string> aside = publisher_->SetDamagedAside(work.identity);
  if (!aside.ok()) return Abandoned(aside.status());
  if (!aside->empty()) {
    Log(LogLevel::kWarning, "damaged checkpoint renamed", {{"model", model_.spec().name}, {"path", *aside}});
  }
  const absl::Status begun = publisher_->Begin(work.identity, world);
  if (absl::IsAlreadyExists(begun)) return publisher_->FindSaved(work.identity);
  if (!begun.ok()) return Abandoned(begun);
  absl::StatusOr<std::vector<PartReport>> reports = WriteAll(work);
  // The last call of the disk may have taken longer than the deadline.
  if (const absl::Status late = CheckGoesOn(work); reports.ok() && !late.ok()) reports = late;
  if (reports.ok()) {
    return publisher_->Publish(*reports, CommonOf(work.state),
                               {.parent = ParentOf(work.state), .saved_at = options_.now()});
  }
  // leftovers() says what could not be removed; the next save removes it.
  publisher_->Abandon().IgnoreError();
  return Abandoned(reports.status());
}

absl::StatusOr<std::vector<PartReport>> Saver::WriteAll(const Work& work) {
  if (!work.alone) {
    RETURN_IF_ERROR(
        cluster().TellSave({.model = model_.spec().name, .what = SavePermission{.id = work.identity.save_id}}));
  }
  ASSIGN_OR_RETURN(const PartReport own,
                   images().Write(publisher_->model_folder(), work.identity, [&] { return CheckGoesOn(work); }));
  if (work.alone) return std::vector<PartReport>{own};
  ASSIGN_OR_RETURN(std::vector<PartReport> reports, AwaitParts(work));
  reports.insert(reports.begin(), own);
  return reports;
}

absl::StatusOr<std::vector<PartReport>> Saver::AwaitParts(const Work& work) {
  const size_t others = cluster().nodes() - 1;
  while (true) {
    RETURN_IF_ERROR(LateParts(CheckGoesOn(work)));
    absl::MutexLock lock(&mu_);
    if (parts_.size() == others && !part_failed_) break;
    if (parts_.size() < others && !part_failed_ && !stopped_) {
      changed_.WaitUntil(&mu_, After(SteadyNow(), Until(work.deadline, options_.clock->Now())));
    }
  }
  absl::MutexLock lock(&mu_);
  std::vector<PartReport> reports;
  for (const auto& [node, part] : parts_) reports.push_back({.node = node, .hash = part.hash});
  return reports;
}

// Names the nodes whose part has not come at the deadline.
absl::Status Saver::LateParts(const absl::Status& status) const {
  if (!absl::IsDeadlineExceeded(status)) return status;
  absl::MutexLock lock(&mu_);
  std::vector<int> late;
  for (int node = 1; node < cluster().nodes(); ++node) {
    if (!parts_.contains(node)) late.push_back(node);
  }
  if (late.empty() || part_failed_) return status;
  return absl::DeadlineExceededError(absl::StrCat("save ", model_.spec().name, ": timed out after ",
                                                  absl::FormatDuration(options_.policy.timeout), ": no part from node ",
                                                  absl::StrJoin(late, ", node ")));
}

void Saver::Retain() {
  // Deletes nothing during a restore: it may read the only checkpoint of its state. The next save deletes the rest.
  const Deletion deletion = publisher_->Retain(options_.policy.keep, [&] { return model_.turn_is_taken(); });
  if (deletion.status.ok()) return;
  Log(LogLevel::kWarning, "failed to delete old checkpoints",
      {{"model", model_.spec().name}, {"why", deletion.status.ToString()}});
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
  if (model.world().cluster->node() == 0) return Saver::Create(model, options_, trouble);
  return FollowingSaver::Create(model, {.root = options_.root,
                                        .saves_on_drain = options_.policy.on_drain,
                                        .calls = options_.calls,
                                        .clock = options_.clock,
                                        .now = options_.now,
                                        .before_copy = options_.before_copy});
}

}  // namespace paramshard::server
