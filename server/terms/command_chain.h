// Commands that all ranks of a daemon have sent in an epoch, for comparison with other daemons.
#ifndef PARAMSHARD_SERVER_TERMS_COMMAND_CHAIN_H_
#define PARAMSHARD_SERVER_TERMS_COMMAND_CHAIN_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/numeric/int128.h"

namespace paramshard::server {

// Chained hash over all commands, and the latest commands as they were sent. Not thread-safe.
class CommandChain {
 public:
  // Largest number and size of the kept commands; older ones are forgotten.
  static constexpr size_t kMostLinks = 1 << 14;
  static constexpr size_t kMostBytes = size_t{1} << 20;

  struct Link {
    int64_t number = 0;
    int rank = 0;            // the first sender
    std::string canonical;   // its bytes
    absl::uint128 hash = 0;  // over all commands through this one
  };

  // Adds the next command; the first one is number 1.
  void Add(int rank, const std::string& canonical);

  int64_t last() const { return last_; }
  absl::uint128 hash() const { return hash_; }
  // Returns the hash through a command; nothing if it was not sent, or is forgotten.
  std::optional<absl::uint128> Through(int64_t number) const;
  const std::deque<Link>& links() const { return links_; }

  // Forgets commands up to this one, which are not asked for any more.
  void Forget(int64_t number);

 private:
  void DropFirst();

  int64_t last_ = 0;
  absl::uint128 hash_ = 0;
  size_t bytes_ = 0;  // of links_
  std::deque<Link> links_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TERMS_COMMAND_CHAIN_H_
