// Values that the daemons of an epoch exchange while they connect, and the calls that wait for them.
#ifndef PARAMSHARD_SERVER_WORLD_RENDEZVOUS_STORE_H_
#define PARAMSHARD_SERVER_WORLD_RENDEZVOUS_STORE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/world/waiters.h"

namespace paramshard::server {

// Holds values under keys, which all nodes may read, and parts under keys: one of each node for each other node. A key
// exists while it has content or a call waits for it. Calls that bring answers add them to `answers`. Not thread-safe.
class RendezvousStore {
 public:
  using Parts = std::vector<std::string>;
  using ValueReaders = Waiters<absl::StatusOr<std::string>>;
  using PartsReaders = Waiters<absl::StatusOr<Parts>>;

  explicit RendezvousStore(int nodes) : nodes_(nodes) {}

  // Parts are complete when these nodes have put theirs. Requires an empty store.
  void StartEpoch(std::vector<int> active) { active_ = std::move(active); }

  // Largest size of all that one node puts in an epoch.
  static constexpr int64_t kMostBytes = int64_t{64} << 20;
  // Returns true and counts the bytes if the node may put so many more.
  bool TakeRoom(int node, int64_t size_bytes);

  // Puts a value unless there is one. Returns true if `value` is the stored value.
  bool Put(absl::string_view key, absl::string_view value, PendingAnswers& answers);
  std::optional<std::string> Find(absl::string_view key) const;
  void Await(absl::string_view key, int64_t waiter, ValueReaders::Answered answered);

  // Requires a part for each node, by node. Keeps the first parts that a node puts.
  void PutParts(int node, absl::string_view key, Parts parts, PendingAnswers& answers);
  // Returns the parts for this node once all nodes of the epoch have put theirs: by node of the world, empty for nodes
  // that take no part.
  std::optional<Parts> FindParts(int node, absl::string_view key) const;
  void AwaitParts(int node, absl::string_view key, int64_t waiter, PartsReaders::Answered answered);
  // Returns true if parts were put or are waited for.
  bool has_parts() const { return !parts_.empty(); }
  // Returns the first node of the epoch that has put no parts.
  std::optional<int> FirstWithoutParts(absl::string_view key) const;

  // Removes a waiter of a value, or of this reader's parts. Returns true if it was waiting.
  bool GiveUp(absl::string_view key, std::optional<int> reader, int64_t waiter);

  // Answer the waiting calls with `why`.
  void DropParts(const absl::Status& why, PendingAnswers& answers);
  void Clear(const absl::Status& why, PendingAnswers& answers);

 private:
  struct PartsOfAll {
    std::map<int, Parts> put;             // by writer, then by reader
    std::map<int, PartsReaders> readers;  // by node
  };
  bool AreComplete(const PartsOfAll& all) const { return all.put.size() == active_.size(); }
  Parts PartsOf(const PartsOfAll& all, int reader) const;

  const int nodes_;  // of the world
  std::vector<int> active_;
  std::map<int, int64_t> put_bytes_;  // by node
  std::map<std::string, std::string, std::less<>> values_;
  std::map<std::string, ValueReaders, std::less<>> readers_;  // by key
  std::map<std::string, PartsOfAll, std::less<>> parts_;      // likewise
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_RENDEZVOUS_STORE_H_
