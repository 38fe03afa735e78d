#include "server/world/bad_link_tracker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace paramshard::server {
namespace {

constexpr int kMostTimesFirst = 64;

// A node's report, which may have any length.
std::string EndText(int node, const std::string& address) {
  constexpr size_t kMostBytes = 64;
  return absl::StrCat("node ", node, " (", absl::CEscape(absl::string_view(address).substr(0, kMostBytes)), ")");
}

}  // namespace

std::string LinkText(int node, const BadLink& link) {
  const std::string self = EndText(node, link.address), peer = EndText(link.peer, link.peer_address);
  return node < link.peer ? absl::StrCat(self, " and ", peer) : absl::StrCat(peer, " and ", self);
}

void BadLinkTracker::Add(int node, const BadLink& link, SteadyTime now) {
  bad_[{std::min(node, link.peer), std::max(node, link.peer)}] = {.text = LinkText(node, link), .said_at = now};
}

void BadLinkTracker::LeaveOut(SteadyTime now) {
  std::vector<Edge> edges;
  for (const auto& [edge, bad] : bad_) edges.push_back(edge);
  const std::vector<int> cover = VertexCover(std::move(edges));
  for (auto& [node, record] : records_) {
    if (std::binary_search(cover.begin(), cover.end(), node)) continue;
    record.is_left_out = false;
  }
  for (const int node : cover) {
    Record& record = records_[node];
    if (record.is_left_out) continue;
    record.stay = NextStay(record, now);
    record.until = now + absl::ToChronoNanoseconds(record.stay);
    record.is_left_out = true;
    record.has_worked = false;
  }
}

absl::Duration BadLinkTracker::NextStay(const Record& record, SteadyTime now) const {
  const bool is_new = record.stay == absl::ZeroDuration();
  const bool was_well = record.has_worked && absl::FromChrono(now - record.worked_at) >= record.stay;
  return is_new || was_well ? first_stay_ : std::min(2 * record.stay, kMostTimesFirst * first_stay_);
}

void BadLinkTracker::TryAgain(SteadyTime now) {
  for (const auto& [node, record] : records_) {
    if (record.is_left_out && now >= record.until) Forget(node);
  }
  std::erase_if(bad_, [&](const auto& link) {
    const auto& [edge, bad] = link;
    return absl::FromChrono(now - bad.said_at) > kLinkAge && !IsLeftOut(edge.first) && !IsLeftOut(edge.second);
  });
}

std::optional<SteadyTime> BadLinkTracker::NextTry() const {
  std::optional<SteadyTime> next;
  for (const auto& [node, record] : records_) {
    if (record.is_left_out) next = std::min(record.until, next.value_or(record.until));
  }
  return next;
}

void BadLinkTracker::Worked(const std::vector<int>& nodes, SteadyTime now) {
  const auto has = [&](int node) { return std::binary_search(nodes.begin(), nodes.end(), node); };
  std::erase_if(bad_, [&](const auto& link) { return has(link.first.first) && has(link.first.second); });
  for (auto& [node, record] : records_) {
    if (!has(node)) continue;
    record.is_left_out = false;
    if (!std::exchange(record.has_worked, true)) record.worked_at = now;
  }
}

void BadLinkTracker::Forget(int node) {
  std::erase_if(bad_, [&](const auto& link) { return link.first.first == node || link.first.second == node; });
  for (auto& [other, record] : records_) {
    record.is_left_out = record.is_left_out && HasBadLink(other);
  }
}

bool BadLinkTracker::HasBadLink(int node) const {
  return std::any_of(bad_.begin(), bad_.end(),
                     [&](const auto& link) { return link.first.first == node || link.first.second == node; });
}

std::vector<int> BadLinkTracker::left_out() const {
  std::vector<int> nodes;
  for (const auto& [node, record] : records_) {
    if (record.is_left_out) nodes.push_back(node);
  }
  return nodes;
}

bool BadLinkTracker::IsLeftOut(int node) const {
  const auto record = records_.find(node);
  return record != records_.end() && record->second.is_left_out;
}

std::vector<std::string> BadLinkTracker::Texts() const {
  std::vector<std::string> texts;
  for (const auto& [edge, bad] : bad_) texts.push_back(bad.text);
  return texts;
}

}  // namespace paramshard::server
