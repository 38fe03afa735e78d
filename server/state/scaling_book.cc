#include "server/state/scaling_book.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/formats/float8.h"
#include "kernels/formats/format.h"

namespace paramshard::server {

ScalingBook::ScalingBook(const ModelSpec& spec) {
  for (int unit = 0; unit < static_cast<int>(spec.units.size()); ++unit) {
    const auto& parameters = spec.units[unit].parameters;
    for (int parameter = 0; parameter < static_cast<int>(parameters.size()); ++parameter) {
      const Encoding encoding = EncodingOf(parameters[parameter].encoding);
      if (!NeedsAmax(encoding.format)) continue;
      Entry& entry = entries_[{unit, parameter}];
      entry.options = parameters[parameter].encoding.delayed_scaling.value_or(DelayedScaling::Options());
      entry.fp8_max = encoding.element == ElementType::kE5M2 ? E5M2::kMax : E4M3::kMax;
      entry.is_delayed = encoding.format == Format::kFP8TensorDelayed;
    }
  }
}

const ScalingBook::Entry* ScalingBook::Find(int unit, int parameter) const {
  const auto found = entries_.find({unit, parameter});
  return found == entries_.end() ? nullptr : &found->second;
}

ScalingBook::Entry* ScalingBook::Find(int unit, int parameter) {
  const auto found = entries_.find({unit, parameter});
  return found == entries_.end() ? nullptr : &found->second;
}

int64_t ScalingBook::history_bytes() const {
  absl::MutexLock lock(&mu_);
  int64_t bytes = 0;
  for (const auto& [key, entry] : entries_) {
    if (entry.delayed.has_value()) bytes += entry.options.history_length * static_cast<int64_t>(sizeof(float));
  }
  return bytes;
}

TensorScaling ScalingBook::Present(int unit, int parameter) const {
  absl::MutexLock lock(&mu_);
  const Entry* const entry = Find(unit, parameter);
  return entry == nullptr ? TensorScaling{} : TensorScaling{.amax = entry->amax, .scale = entry->scale};
}

TensorScaling ScalingBook::Next(int unit, int parameter) const {
  absl::MutexLock lock(&mu_);
  const Entry* const entry = Find(unit, parameter);
  if (entry == nullptr) return {};
  return {.amax = entry->amax, .scale = entry->delayed.has_value() ? entry->delayed->scale() : entry->scale};
}

void ScalingBook::AddStep(int unit, int parameter, float amax) {
  absl::MutexLock lock(&mu_);
  Entry* const entry = Find(unit, parameter);
  if (entry == nullptr) return;
  // An amax that was measured before the step is of another master.
  entry->offered = entry->stepped ? std::max(entry->offered, amax) : amax;
  entry->stepped = true;
  entry->is_fresh = false;
}

void ScalingBook::AddMaster(int unit, int parameter, float amax) {
  absl::MutexLock lock(&mu_);
  Entry* const entry = Find(unit, parameter);
  if (entry != nullptr) entry->offered = std::max(entry->offered, amax);
}

// Returns all amaxes, then for each whether its history begins anew.
std::vector<float> ScalingBook::Offer() const {
  absl::MutexLock lock(&mu_);
  std::vector<float> offers;
  for (const auto& [key, entry] : entries_) offers.push_back(entry.offered);
  for (const auto& [key, entry] : entries_) offers.push_back(entry.offered >= 0 && entry.is_fresh ? 1.0f : 0.0f);
  return offers;
}

void ScalingBook::Settle(absl::Span<const float> offers) {
  absl::MutexLock lock(&mu_);
  PARAMSHARD_CHECK(offers.size() == 2 * entries_.size());
  size_t index = 0;
  for (auto& [key, entry] : entries_) {
    const float amax = offers[index];
    const bool begins = offers[entries_.size() + index] > 0;
    ++index;
    if (begins) {
      entry.Begin(amax);
    } else if (entry.stepped) {
      entry.Roll(amax);
    } else if (amax >= 0) {
      entry.amax = amax;
    }
    entry.offered = -1.0f;
    entry.stepped = false;
  }
}

bool ScalingBook::is_settled() const {
  absl::MutexLock lock(&mu_);
  return std::none_of(entries_.begin(), entries_.end(), [](const auto& entry) { return entry.second.stepped; });
}

void ScalingBook::Restart() {
  absl::MutexLock lock(&mu_);
  for (auto& [key, entry] : entries_) {
    entry.offered = -1.0f;
    entry.stepped = false;
    entry.is_fresh = true;
  }
}

std::vector<ScalingBook::Record> ScalingBook::records() const {
  absl::MutexLock lock(&mu_);
  std::vector<Record> records;
  for (const auto& [key, entry] : entries_) {
    Record& record = records.emplace_back();
    record.unit = key.first;
    record.parameter = key.second;
    record.amax = entry.amax;
    record.scale = entry.scale;
    record.is_fresh = entry.is_fresh;
    record.offered = entry.offered;
    record.stepped = entry.stepped;
    if (entry.delayed.has_value()) record.history = {entry.delayed->scale(), entry.delayed->history()};
  }
  return records;
}

std::vector<ScalingChange> ScalingBook::TakeChanges() {
  absl::MutexLock lock(&mu_);
  std::vector<ScalingChange> changes;
  for (auto& [key, entry] : entries_) {
    changes.push_back({.amax = entry.amax,
                       .scale = entry.scale,
                       .next_scale = entry.delayed.has_value() ? entry.delayed->scale() : 1.0f,
                       .offered = entry.offered,
                       .stepped = entry.stepped,
                       .is_fresh = entry.is_fresh,
                       .history = std::exchange(entry.change, ScalingChange::History::kSame)});
  }
  return changes;
}

void ScalingBook::Restore(absl::Span<const Record> records) {
  absl::MutexLock lock(&mu_);
  for (const Record& record : records) {
    Entry* const entry = Find(record.unit, record.parameter);
    const int64_t amaxes = record.history.has_value() ? static_cast<int64_t>(record.history->amaxes.size()) : 0;
    if (entry == nullptr || amaxes != (entry->is_delayed ? entry->options.history_length : 0)) continue;
    entry->amax = record.amax;
    entry->scale = record.scale;
    entry->is_fresh = record.is_fresh;
    entry->offered = record.offered;
    entry->stepped = record.stepped;
    if (entry->is_delayed) {
      entry->delayed.emplace(entry->options, entry->fp8_max, record.history->scale, record.history->amaxes);
    }
  }
}

void ScalingBook::Entry::Begin(float new_amax) {
  amax = new_amax;
  if (!is_delayed) return;
  delayed.emplace(options, fp8_max);
  delayed->Update(amax);
  scale = delayed->scale();
  change = ScalingChange::History::kBegun;
}

// The planes of the step were encoded with the scale from before.
void ScalingBook::Entry::Roll(float new_amax) {
  amax = new_amax;
  if (!is_delayed) return;
  scale = delayed->scale();
  delayed->Update(amax);
  change = ScalingChange::History::kAppended;
}

}  // namespace paramshard::server
