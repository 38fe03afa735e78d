#include "server/checkpoints/save_records.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/observe/log.h"

namespace paramshard::server {
namespace {

// Largest number of records that are kept and shown.
constexpr size_t kMostRecords = 64;

absl::string_view EventOf(SaveState state) {
  if (state == SaveState::kPublished) return "saved";
  if (state == SaveState::kAlreadySaved) return "already saved";
  if (state == SaveState::kUnknown) return "a save may be lost when the power fails";
  return state == SaveState::kSkipped ? "a save was skipped" : "a save was abandoned";
}

SaveResult ResultOf(SaveState state) {
  if (state == SaveState::kPublished) return SaveResult::kPublished;
  if (state == SaveState::kAlreadySaved) return SaveResult::kAlreadySaved;
  if (state == SaveState::kUnknown) return SaveResult::kUnknown;
  return state == SaveState::kSkipped ? SaveResult::kSkipped : SaveResult::kAbandoned;
}

}  // namespace

SaveRecord& SaveRecords::Add(SaveRecord record) {
  record.number = ++last_number_;
  // Drops one before adding: the new record may be a skipped one itself.
  if (records_.size() == kMostRecords) DropOne();
  return records_.emplace_back(std::move(record));
}

void SaveRecords::DropOne() {
  const auto skipped = std::find_if(records_.begin(), records_.end(),
                                    [](const SaveRecord& each) { return each.state == SaveState::kSkipped; });
  const auto oldest =
      std::find_if(records_.begin(), records_.end(), [](const SaveRecord& each) { return IsOver(each.state); });
  records_.erase(skipped != records_.end() ? skipped : oldest);
}

const SaveRecord* SaveRecords::Find(int64_t number) const {
  const auto found = std::find_if(records_.begin(), records_.end(),
                                  [number](const SaveRecord& each) { return each.number == number; });
  return found == records_.end() ? nullptr : &*found;
}

SaveRecord* SaveRecords::Find(int64_t number) {
  return const_cast<SaveRecord*>(static_cast<const SaveRecords&>(*this).Find(number));
}

absl::StatusOr<SaveRecord> SaveRecords::Get(int64_t number) const {
  if (const SaveRecord* const record = Find(number); record != nullptr) return *record;
  return absl::NotFoundError(absl::StrCat("save ", number, " of ", model_, ": not found among recent saves"));
}

void SaveRecords::Close(const SaveRecord& record) {
  metrics_.Add(Metric::kSaves, ResultOf(record.state));
  switch (record.state) {
    case SaveState::kPublished:
      ++counts_.published;
      counts_.last_published = record.begun_at + record.took;
      metrics_.Observe(Metric::kSave, absl::ToChronoNanoseconds(record.took));
      break;
    case SaveState::kUnknown:
      ++counts_.unknown;
      break;
    case SaveState::kSkipped:
      ++counts_.skipped;
      break;
    case SaveState::kAlreadySaved:
      break;
    default:
      ++counts_.abandoned;
  }
  const LogLevel level = HasCheckpoint(record.state) ? LogLevel::kInfo : LogLevel::kWarning;
  const auto log = [&](const auto&... why) {
    Log(level, EventOf(record.state),
        {{"model", model_},
         {"step", absl::StrCat(record.step)},
         {"path", record.path},
         {"bytes", absl::StrCat(record.size_bytes)},
         {"took", absl::FormatDuration(absl::Trunc(record.took, absl::Milliseconds(1)))},
         {"copy", absl::FormatDuration(absl::Trunc(record.copy, absl::Milliseconds(1)))},
         {"stall", absl::FormatDuration(absl::Trunc(record.stall, absl::Milliseconds(1)))},
         why...});
  };
  record.status.ok() ? log() : log(LogFields::value_type("why", record.status.ToString()));
}

}  // namespace paramshard::server
