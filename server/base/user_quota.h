// Quota of the users of a machine, of places that they share.
#ifndef PARAMSHARD_SERVER_BASE_USER_QUOTA_H_
#define PARAMSHARD_SERVER_BASE_USER_QUOTA_H_

#include <sys/types.h>

#include <map>
#include <optional>

namespace paramshard::server {

// Keeps users from taking all places: each user but the owner has at most half of them, and all such users together at
// most three quarters, so that a quarter is left for the owner. The owner may have all. Not thread-safe.
class UserQuota {
 public:
  // User id from the kernel. All users without an id count as one.
  using User = std::optional<uid_t>;

  UserQuota(int places, uid_t owner) : places_(places), owner_(owner) {}

  // Returns false, and takes nothing, if there is no place for the user.
  bool Take(User user);
  void GiveBack(User user);
  // Returns true if there is a place for the user.
  bool WouldFind(User user) const { return HasRoom(user, std::nullopt); }
  // Returns true if there would be a place for `user` once `leaving`, which has one, gave it back.
  bool WouldFind(User user, User leaving) const { return HasRoom(user, Leaving{.user = leaving}); }

 private:
  struct Leaving {
    User user;
  };
  bool HasRoom(User user, std::optional<Leaving> leaving) const;
  int Of(User user) const;

  int places_;
  uid_t owner_;
  int taken_ = 0;
  std::map<User, int> by_user_;  // counts above 0
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_BASE_USER_QUOTA_H_
