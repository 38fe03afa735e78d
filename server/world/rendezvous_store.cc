#include "server/world/rendezvous_store.h"

#include <utility>

namespace paramshard::server {
namespace {

// Removes the waiter, and the key with the last one. Returns true if it was waiting.
template <typename Map, typename Key>
bool RemoveFrom(Map& waiting, const Key& key, int64_t waiter) {
  const auto found = waiting.find(key);
  if (found == waiting.end()) return false;
  const bool waited = found->second.Remove(waiter);
  if (found->second.empty()) waiting.erase(found);
  return waited;
}

}  // namespace

bool RendezvousStore::TakeRoom(int node, int64_t size_bytes) {
  int64_t& put = put_bytes_[node];
  if (size_bytes > kMostBytes - put) return false;
  put += size_bytes;
  return true;
}

bool RendezvousStore::Put(absl::string_view key, absl::string_view value, PendingAnswers& answers) {
  if (values_.try_emplace(std::string(key), std::string(value)).first->second != value) return false;
  if (const auto readers = readers_.find(key); readers != readers_.end()) {
    AnswerAll<absl::StatusOr<std::string>>(readers->second, std::string(value), answers);
    readers_.erase(readers);
  }
  return true;
}

std::optional<std::string> RendezvousStore::Find(absl::string_view key) const {
  const auto value = values_.find(key);
  return value == values_.end() ? std::nullopt : std::optional<std::string>(value->second);
}

void RendezvousStore::Await(absl::string_view key, int64_t waiter, ValueReaders::Answered answered) {
  readers_[std::string(key)].Add(waiter, std::move(answered));
}

void RendezvousStore::PutParts(int node, absl::string_view key, Parts parts, PendingAnswers& answers) {
  PartsOfAll& all = parts_[std::string(key)];
  all.put.emplace(node, std::move(parts));
  if (!AreComplete(all)) return;
  for (auto& [reader, waiting] : std::exchange(all.readers, {})) {
    AnswerAll<absl::StatusOr<Parts>>(waiting, PartsOf(all, reader), answers);
  }
}

std::optional<RendezvousStore::Parts> RendezvousStore::FindParts(int node, absl::string_view key) const {
  const auto all = parts_.find(key);
  if (all == parts_.end() || !AreComplete(all->second)) return std::nullopt;
  return PartsOf(all->second, node);
}

void RendezvousStore::AwaitParts(int node, absl::string_view key, int64_t waiter, PartsReaders::Answered answered) {
  parts_[std::string(key)].readers[node].Add(waiter, std::move(answered));
}

std::optional<int> RendezvousStore::FirstWithoutParts(absl::string_view key) const {
  const auto all = parts_.find(key);
  for (const int node : active_) {
    if (all == parts_.end() || !all->second.put.contains(node)) return node;
  }
  return std::nullopt;
}

bool RendezvousStore::GiveUp(absl::string_view key, std::optional<int> reader, int64_t waiter) {
  if (!reader.has_value()) return RemoveFrom(readers_, key, waiter);
  const auto all = parts_.find(key);
  if (all == parts_.end()) return false;
  const bool waited = RemoveFrom(all->second.readers, *reader, waiter);
  if (all->second.put.empty() && all->second.readers.empty()) parts_.erase(all);
  return waited;
}

void RendezvousStore::DropParts(const absl::Status& why, PendingAnswers& answers) {
  for (auto& [key, all] : std::exchange(parts_, {})) {
    for (auto& [node, waiting] : all.readers) AnswerAll<absl::StatusOr<Parts>>(waiting, why, answers);
  }
}

void RendezvousStore::Clear(const absl::Status& why, PendingAnswers& answers) {
  values_.clear();
  put_bytes_.clear();
  for (auto& [key, waiting] : std::exchange(readers_, {})) {
    AnswerAll<absl::StatusOr<std::string>>(waiting, why, answers);
  }
  DropParts(why, answers);
}

RendezvousStore::Parts RendezvousStore::PartsOf(const PartsOfAll& all, int reader) const {
  Parts of(nodes_);
  for (const auto& [node, parts] : all.put) of[node] = parts[reader];
  return of;
}

}  // namespace paramshard::server
