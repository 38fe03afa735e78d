#include "server/world/detached_ranks.h"

#include <algorithm>

namespace paramshard::server {

bool DetachedRanks::Add(int rank, int64_t command_count, const absl::Status& why) {
  const std::optional<int64_t> before = last_command();
  detached_.try_emplace(rank, Detached{command_count, why});
  return last_command() != before;
}

void DetachedRanks::AddProgress(int node, int64_t command, bool more) {
  if (const auto found = progress_.find(node); found != progress_.end()) found->second = {command, more};
}

const DetachedRanks::Detached* DetachedRanks::First() const {
  const auto first = std::min_element(detached_.begin(), detached_.end(), [](const auto& a, const auto& b) {
    return a.second.command_count < b.second.command_count;
  });
  return first == detached_.end() ? nullptr : &first->second;
}

std::optional<int64_t> DetachedRanks::last_command() const {
  const Detached* const first = First();
  return first == nullptr ? std::nullopt : std::optional(first->command_count);
}

absl::Status DetachedRanks::End(int ranks) const {
  const Detached* const first = First();
  if (first == nullptr) return absl::OkStatus();
  if (static_cast<int>(detached_.size()) == ranks) return first->why;
  bool more = false;
  for (const auto& [node, progress] : progress_) {
    if (progress.command < first->command_count) return absl::OkStatus();
    // A node that has carried out a later command was told of a later last command before.
    more = more || progress.more || progress.command > first->command_count;
  }
  return more ? first->why : absl::OkStatus();
}

}  // namespace paramshard::server
