// Places that users of one machine share.
#ifndef PARAMSHARD_SERVER_BASE_USER_PLACES_H_
#define PARAMSHARD_SERVER_BASE_USER_PLACES_H_

#include <sys/types.h>

#include <map>
#include <optional>

namespace paramshard::server {

// Keeps users from taking all places: a user who is not the owner has half of them at most, all of them together have
// three quarters. So the owner always finds a quarter. The owner itself may have all: it decides who else is let in.
// Not thread-safe.
class UserPlaces {
 public:
  // As the kernel names one. Those whom it does not name count as one user.
  using User = std::optional<uid_t>;

  UserPlaces(int places, uid_t owner) : places_(places), owner_(owner) {}

  // False when there is none for the user; then nothing is taken.
  bool Take(User user);
  void GiveBack(User user);
  // Whether there is one for the user.
  bool WouldFind(User user) const { return HasRoom(user, std::nullopt); }
  // Whether `user` would find a place if `leaving`, who has one, gave it back.
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
  std::map<User, int> by_user_;  // those above 0
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_BASE_USER_PLACES_H_
