#include "server/checkpoints/checkpoint_folder.h"

#include <utility>

#include "common/checkpoint/common_state.h"
#include "kernels/base/status_macros.h"
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

checkpoint::CommonState CommonOf(const HeldState& state) {
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

std::optional<checkpoint::Manifest::Parent> ParentOf(const HeldState& state) {
  if (!state.parent.has_value()) return std::nullopt;
  return checkpoint::Manifest::Parent{.history = state.parent->history.value, .step = state.parent->commit_number};
}

}  // namespace

absl::Status CheckpointFolder::Open() {
  absl::StatusOr<std::unique_ptr<Publisher>> opened = Publisher::Open(options_.calls, options_.root, model_.spec());
  {
    absl::MutexLock lock(&mu_);
    opened_ = opened.status();
  }
  RETURN_IF_ERROR(opened.status());
  publisher_ = *std::move(opened);
  NoteLeftovers();
  // The previous server may have saved the state that it left.
  const StateNumbers numbers = model_.state().snapshot().numbers;
  const Publisher::Result found =
      publisher_->FindSaved({.step = numbers.commit_number, .history = numbers.history.value});
  absl::MutexLock lock(&mu_);
  if (found.state == SaveState::kAlreadySaved) saved_ = numbers;
  return absl::OkStatus();
}

SaveEnd CheckpointFolder::Save(const SaveIdentity& identity, const HeldState& state, const checkpoint::World& world,
                               PartsWriter write) {
  const SaveEnd end = Publish(identity, state, world, write);
  if (HasCheckpoint(end.state)) {
    absl::MutexLock lock(&mu_);
    saved_ = state.numbers;
  }
  if (end.state == SaveState::kPublished) Retain();
  NoteLeftovers();
  return end;
}

SaveEnd CheckpointFolder::Publish(const SaveIdentity& identity, const HeldState& state, const checkpoint::World& world,
                                  PartsWriter write) {
  if (publisher_ != nullptr && !publisher_->HoldsFolder()) publisher_.reset();
  if (publisher_ == nullptr) {
    // An operator may have repaired the folder meanwhile.
    if (const absl::Status opened = Open(); !opened.ok()) return {.why = opened};
  }
  const absl::StatusOr<std::string> aside = publisher_->SetDamagedAside(identity);
  if (!aside.ok()) return {.why = aside.status()};
  if (!aside->empty()) {
    Log(LogLevel::kWarning, "damaged checkpoint renamed", {{"model", model_.spec().name}, {"path", *aside}});
  }
  const absl::Status begun = publisher_->Begin(identity, world);
  const bool is_there = absl::IsAlreadyExists(begun);
  if (!begun.ok() && !is_there) return {.why = begun};
  const absl::StatusOr<std::vector<PartReport>> parts = is_there ? std::vector<PartReport>() : write();
  if (!parts.ok()) {
    // leftovers() says what could not be removed; the next save removes it.
    publisher_->Abandon().IgnoreError();
    return {.why = parts.status()};
  }
  const Publisher::Result result =
      is_there ? publisher_->FindSaved(identity)
               : publisher_->Publish(*parts, CommonOf(state), {.parent = ParentOf(state), .saved_at = options_.now()});
  return {.state = result.state, .path = result.path, .size_bytes = result.size_bytes, .why = result.status};
}

void CheckpointFolder::Retain() {
  // Deletes nothing during a restore: it may read the only checkpoint of its state. The next save deletes the rest.
  const Deletion deletion = publisher_->Retain(options_.keep, [&] { return model_.state().is_import_locked(); });
  if (deletion.status.ok()) return;
  Log(LogLevel::kWarning, "failed to delete old checkpoints",
      {{"model", model_.spec().name}, {"why", deletion.status.ToString()}});
}

void CheckpointFolder::NoteLeftovers() {
  absl::MutexLock lock(&mu_);
  if (publisher_ == nullptr || publisher_->leftovers() == leftovers_) return;
  leftovers_ = publisher_->leftovers();
  if (leftovers_.ok()) return;
  Log(LogLevel::kWarning, "failed to delete leftovers of saves",
      {{"model", model_.spec().name}, {"why", leftovers_.ToString()}});
}

bool CheckpointFolder::IsSaved(const StateNumbers& numbers) const {
  absl::MutexLock lock(&mu_);
  return saved_.has_value() && saved_->history == numbers.history && saved_->commit_number == numbers.commit_number;
}

void CheckpointFolder::AddTo(SaveCounts& counts) const {
  absl::MutexLock lock(&mu_);
  counts.leftovers = leftovers_;
  counts.folder = opened_;
}

}  // namespace paramshard::server
