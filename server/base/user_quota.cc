#include "server/base/user_quota.h"

#include <algorithm>

namespace paramshard::server {

bool UserQuota::Take(User user) {
  if (!HasRoom(user, std::nullopt)) return false;
  ++taken_;
  ++by_user_[user];
  return true;
}

void UserQuota::GiveBack(User user) {
  --taken_;
  const auto found = by_user_.find(user);
  if (--found->second == 0) by_user_.erase(found);
}

bool UserQuota::HasRoom(User user, std::optional<Leaving> leaving) const {
  const auto freed_by = [&](User who) { return leaving.has_value() && leaving->user == who ? 1 : 0; };
  const int taken = taken_ - (leaving.has_value() ? 1 : 0);
  if (taken >= places_) return false;
  if (user == owner_) return true;
  const int of_user = Of(user) - freed_by(user);
  const int of_all_others = taken - (Of(owner_) - freed_by(owner_));
  return of_all_others < places_ - places_ / 4 && of_user < std::max(1, places_ / 2);
}

int UserQuota::Of(User user) const {
  const auto found = by_user_.find(user);
  return found == by_user_.end() ? 0 : found->second;
}

}  // namespace paramshard::server
