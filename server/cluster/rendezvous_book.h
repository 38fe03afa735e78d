// What the daemons of one epoch leave for each other while they connect, and who waits for it.
#ifndef PARAMSHARD_SERVER_CLUSTER_RENDEZVOUS_BOOK_H_
#define PARAMSHARD_SERVER_CLUSTER_RENDEZVOUS_BOOK_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/cluster/waiters.h"

namespace paramshard::server {

// Values under keys, which all may read, and parts under keys: what each node has for each other one. Nothing is kept
// for readers alone: a key is there while something lies under it or somebody waits for it. Calls that bring answers
// add them to `answers`. Not thread-safe.
class RendezvousBook {
 public:
  using Parts = std::vector<std::string>;
  using ValueReaders = Waiters<absl::StatusOr<std::string>>;
  using PartsReaders = Waiters<absl::StatusOr<Parts>>;

  explicit RendezvousBook(int nodes) : nodes_(nodes) {}

  // Parts of these nodes are all that are put. Requires an empty book.
  void StartEpoch(std::vector<int> active) { active_ = std::move(active); }

  // Of what one node puts in an epoch.
  static constexpr int64_t kMostBytes = int64_t{64} << 20;
  // Whether the node may put so many bytes more: then they count.
  bool TakeRoom(int node, int64_t size_bytes);

  // Whether the value lies there now: the first one stays.
  bool Put(absl::string_view key, absl::string_view value, PendingAnswers& answers);
  std::optional<std::string> Find(absl::string_view key) const;
  void Await(absl::string_view key, int64_t waiter, ValueReaders::Answered answered);

  // Requires a part for each node, by node. The first ones of a node stay.
  void PutParts(int node, absl::string_view key, Parts parts, PendingAnswers& answers);
  // Those for this node, by node of the world, when all that take part have put theirs; of others nothing.
  std::optional<Parts> FindParts(int node, absl::string_view key) const;
  void AwaitParts(int node, absl::string_view key, int64_t waiter, PartsReaders::Answered answered);
  // Somebody has put some, or waits for some.
  bool has_parts() const { return !parts_.empty(); }
  // The first node of the epoch that has put none.
  std::optional<int> FirstWithoutParts(absl::string_view key) const;

  // Whether the waiter was among those of a value, or among those of this reader's parts.
  bool GiveUp(absl::string_view key, std::optional<int> reader, int64_t waiter);

  // Whoever waits is told why.
  void DropParts(const absl::Status& why, PendingAnswers& answers);
  void Clear(const absl::Status& why, PendingAnswers& answers);

 private:
  struct PartsOfAll {
    std::map<int, Parts> put;             // by node that has put them, then by reader
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

#endif  // PARAMSHARD_SERVER_CLUSTER_RENDEZVOUS_BOOK_H_
