#include "client/internal/sockets.h"

#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CheckOwnerTest : public testing::Test {
 protected:
  // root may own every user's directory: when root runs the test, another user gets this one.
  CheckOwnerTest() { EXPECT_EQ(chown(directory_.c_str(), owner_, static_cast<gid_t>(-1)), 0); }

  const uid_t owner_ = geteuid() == 0 ? 4711 : geteuid();
  const test::TemporaryDirectory folder_;
  const std::string& directory_ = folder_.path();
};

TEST_F(CheckOwnerTest, OwnDirectoriesAndThoseOfRootAreAccepted) {
  EXPECT_OK(CheckOwner(directory_, owner_));
  EXPECT_OK(CheckOwner("/", owner_));
}

TEST_F(CheckOwnerTest, ADirectoryOfAnotherUserIsRefused) {
  EXPECT_THAT(
      CheckOwner(directory_, owner_ + 1),
      StatusIs(absl::StatusCode::kPermissionDenied,
               AllOf(HasSubstr(absl::StrCat("of user ", owner_ + 1, " or root, got a directory of user ", owner_)),
                     HasSubstr("name its socket directory"))));
}

TEST_F(CheckOwnerTest, ALinkIsNotFollowed) {
  const std::string link = directory_ + "/link";
  std::filesystem::create_symlink("/", link);
  EXPECT_THAT(CheckOwner(link, owner_), StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("another file")));
}

TEST_F(CheckOwnerTest, WhereNobodyServesThereIsNoDaemon) {
  EXPECT_THAT(CheckOwner(directory_ + "/none", owner_),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("cannot reach a daemon at " + directory_ + "/none")));
}

TEST(FindSocketsTest, ADirectoryWithALongNameIsRefused) {
  EXPECT_OK(FindSockets("/" + std::string(93, 'x')));
  EXPECT_THAT(FindSockets("/" + std::string(94, 'x')),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("socket directory /xxx"), HasSubstr("94 bytes"), HasSubstr("got 95"))));
}

}  // namespace
}  // namespace paramshard::internal
