#include "server/world/quorum.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace paramshard::server {
namespace {

// Largest number of doublings of the time that a node is held back.
constexpr int64_t kMostDoublings = 8;

SteadyTime GivenUpAt(const Membership& members, int node, const QuorumPolicy& policy) {
  return members.changed_at(node) + absl::ToChronoNanoseconds(policy.timeout);
}

}  // namespace

std::optional<std::vector<int>> NextActive(const Membership& members, const std::vector<int>& before,
                                           absl::FunctionRef<bool(int node)> is_ready, const QuorumPolicy& policy,
                                           bool may_be_fewer, const std::vector<int>& left_out, SteadyTime now) {
  std::vector<int> active;
  for (int node = 0; node < members.nodes(); ++node) {
    const bool was_in = std::find(before.begin(), before.end(), node) != before.end();
    if (members.present(node)) {
      if (was_in || is_ready(node)) active.push_back(node);
    } else if (was_in && now < GivenUpAt(members, node, policy)) {
      return std::nullopt;
    }
  }
  const size_t needed = may_be_fewer ? policy.Needed(members.nodes()) : members.nodes();
  if (active.size() < needed) return std::nullopt;
  std::vector<int> linked;
  std::set_difference(active.begin(), active.end(), left_out.begin(), left_out.end(), std::back_inserter(linked));
  return linked.size() < needed ? active : linked;
}

absl::Duration HeldBackFor(const Membership& members, int node, const QuorumPolicy& policy, SteadyTime now) {
  const int64_t doublings = std::min(members.losses(node), kMostDoublings);
  if (doublings < 2) return absl::ZeroDuration();
  const absl::Duration stay = policy.timeout * (int64_t{1} << (doublings - 1));
  return std::max(absl::ZeroDuration(), stay - absl::FromChrono(now - members.changed_at(node)));
}

bool MayReturn(const Membership& members, int node, const QuorumPolicy& policy, SteadyTime now) {
  return members.present(node) && HeldBackFor(members, node, policy, now) == absl::ZeroDuration();
}

std::optional<SteadyTime> NextGivenUp(const Membership& members, const QuorumPolicy& policy, SteadyTime now) {
  std::optional<SteadyTime> next;
  for (int node = 0; node < members.nodes(); ++node) {
    if (members.present(node)) continue;
    const SteadyTime at = GivenUpAt(members, node, policy);
    if (at > now) next = std::min(at, next.value_or(at));
  }
  return next;
}

}  // namespace paramshard::server
