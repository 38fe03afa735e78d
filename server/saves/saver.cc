#include "server/saves/saver.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "proto/checkpoint/common_state.h"
#include "proto/checkpoint/rank_file.h"
#include "proto/model/names.h"
#include "server/base/thread.h"
#include "server/log/log.h"
#include "server/saves/disk.h"
#include "server/saves/save_folder.h"
#include "server/store/pinned_state.h"

namespace paramshard::server {
namespace {

// That are shown. Skipped ones go first: a slow disk makes many.
constexpr size_t kMostRecords = 64;

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

checkpoint::World WorldOf(const Layout& layout, const World& world) {
  return {.size = world.world_size, .shard_size = layout.ranks()};
}

SaveState StateOf(SaveOutcome outcome) {
  switch (outcome) {
    case SaveOutcome::kPublished:
      return SaveState::kPublished;
    case SaveOutcome::kAbandoned:
      return SaveState::kAbandoned;
    case SaveOutcome::kUnknown:
      break;
  }
  return SaveState::kUnknown;
}

absl::string_view EventOf(SaveState state) {
  if (state == SaveState::kPublished) return "saved";
  if (state == SaveState::kUnknown) return "a save may be lost when the power fails";
  return state == SaveState::kSkipped ? "a save was skipped" : "a save was abandoned";
}

Publisher::Result Abandoned(const absl::Status& status) {
  return {.outcome = SaveOutcome::kAbandoned, .status = status};
}

void LogOver(const std::string& model, const SaveRecord& record) {
  const LogLevel level = record.state == SaveState::kPublished ? LogLevel::kInfo : LogLevel::kWarning;
  Log(level, EventOf(record.state),
      {{"model", model},
       {"step", absl::StrCat(record.step)},
       {"path", record.path},
       {"bytes", absl::StrCat(record.size_bytes)},
       {"took", absl::FormatDuration(absl::Trunc(record.took, absl::Milliseconds(1)))},
       {"stall", absl::FormatDuration(absl::Trunc(record.stall, absl::Milliseconds(1)))},
       {"why", record.status.ToString()}});
}

}  // namespace

// --- From start to end ---

absl::StatusOr<std::unique_ptr<Saver>> Saver::Create(Model& model, const Options& options) {
  auto saver = std::unique_ptr<Saver>(new Saver(model, options));
  RETURN_IF_ERROR(saver->Open());
  return saver;
}

Saver::Saver(Model& model, const Options& options)
    : model_(model), options_(options), opened_at_(options.clock->Now()), last_due_(opened_at_) {}

absl::Status Saver::Open() {
  ASSIGN_OR_RETURN(publisher_, Publisher::Open(options_.calls, options_.root, model_.spec()));
  for (int rank = 0; rank < model_.world().rank_count(); ++rank) {
    ASSIGN_OR_RETURN(auto image, StateImage::Create(model_.layout(), world(), model_.world().first_rank + rank));
    images_.push_back(std::move(image));
  }
  ASSIGN_OR_RETURN(std::thread thread, StartThread("saves of " + model_.spec().name, [this] { Run(); }));
  absl::MutexLock lock(&mu_);
  thread_ = std::move(thread);
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

checkpoint::World Saver::world() const { return WorldOf(model_.layout(), model_.world()); }

int64_t Saver::image_bytes() const {
  int64_t bytes = 0;
  for (const auto& image : images_) bytes += image->size_bytes();
  return bytes;
}

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
  // One that waits is of this commit: what falls due with it is the same save.
  if (waiting_) return Hold();
  if (reason.has_value()) Begin(*reason, answer.commit_number);
}

void Saver::OnSettled() {
  absl::MutexLock lock(&mu_);
  if (waiting_) Hold();
}

absl::StatusOr<SaveRecord> Saver::Request() {
  RETURN_IF_ERROR(CheckIdle("save"));
  const int64_t step = model_.commit_log().numbers().commit_number;
  absl::MutexLock lock(&mu_);
  if (stopped_) return absl::UnavailableError(absl::StrCat("save ", model_.spec().name, ": the model is closed"));
  Begin(SaveReason::kCall, step);
  return Shown(records_.back());
}

absl::Status Saver::CheckIdle(absl::string_view operation) const {
  absl::MutexLock lock(&mu_);
  if (!under_way_.has_value()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(operation, " ", model_.spec().name, ": no save under way expected, got ",
                                             "that of step ", Find(*under_way_)->step,
                                             "; try again when it is through"));
}

void Saver::Begin(SaveReason reason, int64_t step) {
  SaveRecord record{.number = ++last_number_, .reason = reason, .step = step, .begun_at = options_.now()};
  if (under_way_.has_value()) {
    record.state = SaveState::kSkipped;
    record.status = absl::UnavailableError(absl::StrCat("the save of step ", Find(*under_way_)->step,
                                                        " was still under way: the disk is slow, or saves "
                                                        "are due too often"));
    Count(record);
    return Add(record);
  }
  Add(record);
  under_way_ = record.number;
  waiting_ = true;
  written_bytes_ = 0;
  begun_ = options_.clock->Now();
  Hold();
}

void Saver::Hold() {
  absl::StatusOr<Model::HeldState> state = model_.HoldState();
  if (absl::IsAborted(state.status())) return;
  if (!state.ok()) return Finish(Abandoned(state.status()));
  waiting_ = false;
  SaveRecord& record = present();
  record.state = SaveState::kCopying;
  record.step = state->numbers.commit_number;
  record.history = state->numbers.history;
  work_ = Work{.number = record.number, .deadline = After(begun_, options_.policy.timeout), .state = *std::move(state)};
  changed_.SignalAll();
}

bool Saver::IsSaved(const StateNumbers& numbers) const {
  return saved_.has_value() && saved_->history == numbers.history && saved_->commit_number == numbers.commit_number;
}

void Saver::Drain(SteadyTime deadline) {
  if (!options_.policy.on_drain) return;
  const Model::State state = model_.state();
  const bool untouched = model_.untouched();
  absl::MutexLock lock(&mu_);
  if (!AwaitOver(deadline) || stopped_ || untouched || IsSaved(state.numbers)) return;
  Begin(SaveReason::kDrain, state.numbers.commit_number);
  AwaitOver(deadline);
}

bool Saver::AwaitOver(SteadyTime deadline) const {
  while (under_way_.has_value() && !changed_.WaitUntil(&mu_, deadline)) {
  }
  return !under_way_.has_value();
}

// --- Records ---

void Saver::Add(const SaveRecord& record) {
  records_.push_back(record);
  if (records_.size() <= kMostRecords) return;
  const auto skipped = std::find_if(records_.begin(), records_.end(),
                                    [](const SaveRecord& each) { return each.state == SaveState::kSkipped; });
  const auto oldest =
      std::find_if(records_.begin(), records_.end(), [](const SaveRecord& each) { return IsOver(each.state); });
  records_.erase(skipped != records_.end() ? skipped : oldest);
}

const SaveRecord* Saver::Find(int64_t number) const {
  const auto found = std::find_if(records_.begin(), records_.end(),
                                  [number](const SaveRecord& each) { return each.number == number; });
  return found == records_.end() ? nullptr : &*found;
}

SaveRecord& Saver::present() {
  const int64_t number = *under_way_;
  return *std::find_if(records_.begin(), records_.end(),
                       [number](const SaveRecord& each) { return each.number == number; });
}

SaveRecord Saver::Shown(const SaveRecord& record) const {
  SaveRecord shown = record;
  if (IsOver(record.state)) return shown;
  shown.took = absl::FromChrono(options_.clock->Now() - begun_);
  shown.written_bytes = written_bytes_;
  return shown;
}

void Saver::Count(const SaveRecord& record) {
  switch (record.state) {
    case SaveState::kPublished:
      ++counts_.published;
      break;
    case SaveState::kUnknown:
      ++counts_.unknown;
      break;
    case SaveState::kSkipped:
      ++counts_.skipped;
      break;
    default:
      ++counts_.abandoned;
  }
  LogOver(model_.spec().name, record);
}

void Saver::Finish(const Publisher::Result& result) {
  SaveRecord& record = present();
  record = Shown(record);
  record.state = StateOf(result.outcome);
  record.status = result.status;
  record.path = result.path;
  if (!result.path.empty()) record.size_bytes = result.size_bytes;
  if (record.state == SaveState::kPublished) {
    saved_ = StateNumbers{.history = record.history, .commit_number = record.step};
  }
  Count(record);
  under_way_.reset();
  waiting_ = false;
  changed_.SignalAll();
}

absl::StatusOr<SaveRecord> Saver::Await(int64_t number, SteadyTime deadline) const {
  absl::MutexLock lock(&mu_);
  while (under_way_ == number && !changed_.WaitUntil(&mu_, deadline)) {
  }
  const SaveRecord* const record = Find(number);
  if (record != nullptr) return Shown(*record);
  return absl::NotFoundError(absl::StrCat("save ", number, " of ", model_.spec().name, ": a recent one expected"));
}

std::vector<SaveRecord> Saver::records() const {
  absl::MutexLock lock(&mu_);
  std::vector<SaveRecord> records;
  for (const SaveRecord& record : records_) records.push_back(Shown(record));
  return records;
}

SaveCounts Saver::counts() const {
  absl::MutexLock lock(&mu_);
  return counts_;
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
  const absl::Status copied = Copy(work);
  {
    absl::MutexLock lock(&mu_);
    SaveRecord& record = present();
    record.stall = model_.copy_stall();
    record.state = SaveState::kWriting;
    for (const auto& image : images_) {
      for (int i = 0; copied.ok() && i < image->file_count(); ++i) {
        record.size_bytes += static_cast<int64_t>(image->Bytes(i).size());
      }
    }
  }
  const Publisher::Result result = copied.ok() ? Write(work) : Abandoned(copied);
  // The checkpoint is there, whatever becomes of older ones: but who waits for the save finds them gone.
  if (result.outcome == SaveOutcome::kPublished) Retain();
  absl::MutexLock lock(&mu_);
  Finish(result);
}

absl::Status Saver::CheckGoesOn(const Work& work) const {
  const std::string& name = model_.spec().name;
  if (stopping_) return absl::CancelledError(absl::StrCat("save ", name, ": the model is closed"));
  if (options_.clock->Now() < work.deadline) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("save ", name, ": an end within ", absl::FormatDuration(options_.policy.timeout), " expected"));
}

absl::Status Saver::OnAllRanks(absl::string_view purpose, absl::FunctionRef<absl::Status(int rank)> work) const {
  std::vector<absl::Status> results(ranks());
  std::vector<std::thread> threads;
  for (int rank = 1; rank < ranks(); ++rank) {
    absl::StatusOr<std::thread> thread = StartThread(purpose, [&results, work, rank] { results[rank] = work(rank); });
    // A thread that runs may have written its result already.
    if (thread.ok()) {
      threads.push_back(*std::move(thread));
    } else {
      results[rank] = thread.status();
    }
  }
  results[0] = work(0);
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& result : results) RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

absl::Status Saver::Copy(const Work& work) {
  const absl::Cleanup release = [this] { model_.ReleaseState(); };
  return OnAllRanks("a copy for a save", [&](int rank) {
    options_.before_copy(rank);
    const absl::Status copied = CopyRank(work, rank);
    model_.ReleaseState(rank);
    return copied;
  });
}

absl::Status Saver::CopyRank(const Work& work, int rank) {
  const PinnedState pinned = PinnedState::At("save", model_.spec().name, work.state.numbers, work.state.generation);
  const auto check = [&](const Shard& shard) ABSL_SHARED_LOCKS_REQUIRED(shard.mutex()) {
    RETURN_IF_ERROR(CheckGoesOn(work));
    RETURN_IF_ERROR(model_.CheckHeld());
    return pinned.Check(shard);
  };
  return images_[rank]->Fill(*model_.shards()[rank], work.state.commits.client_states[rank], check);
}

Publisher::Result Saver::Write(const Work& work) {
  const SaveIdentity identity{.step = work.state.numbers.commit_number,
                              .history = work.state.numbers.history.value,
                              .save_id = options_.draw_id().value};
  if (const absl::Status begun = publisher_->Begin(identity, world()); !begun.ok()) return Abandoned(begun);
  const absl::StatusOr<PartReport> report = WriteFiles(work, identity);
  if (report.ok()) {
    return publisher_->Publish({*report}, CommonOf(work.state),
                               {.parent = ParentOf(work.state), .saved_at = options_.now()});
  }
  // What is left is removed before the next save.
  publisher_->Abandon().IgnoreError();
  return Abandoned(report.status());
}

absl::StatusOr<PartReport> Saver::WriteFiles(const Work& work, const SaveIdentity& identity) {
  const SaveFolder folder(Disk(options_.calls), publisher_->model_folder(), identity);
  RETURN_IF_ERROR(OnAllRanks("files of a save", [&](int rank) { return WriteRank(work, folder, rank); }));
  std::vector<const StateImage*> images;
  for (const auto& image : images_) images.push_back(image.get());
  return folder.Finish(model_.world().cluster->node(), images);
}

absl::Status Saver::WriteRank(const Work& work, const SaveFolder& folder, int rank) {
  int64_t known_bytes = 0;
  return folder.WriteRank(*images_[rank], [&](int64_t written_bytes) {
    written_bytes_ += written_bytes - std::exchange(known_bytes, written_bytes);
    return CheckGoesOn(work);
  });
}

void Saver::Retain() {
  const Deletion deletion = publisher_->Retain(options_.policy.keep);
  if (deletion.status.ok()) return;
  Log(LogLevel::kWarning, "old checkpoints could not be deleted",
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

absl::StatusOr<std::unique_ptr<ModelSaver>> Savers::Make(Model& model) const { return Saver::Create(model, options_); }

}  // namespace paramshard::server
