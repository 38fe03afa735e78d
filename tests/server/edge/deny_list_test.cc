#include "server/edge/deny_list.h"

#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DenyListTest : public testing::Test {
 protected:
  void Write(const std::string& text) const { std::ofstream(path_) << text; }
  static void AwaitName(const DenyList& list, const std::string& name) {
    while (!list.Names(name)) {
    }
  }

  const test::TemporaryDirectory folder_;
  const std::string path_ = folder_.path() + "/deny";
};

TEST_F(DenyListTest, NamesWhatALineHas) {
  Write("# gone in May\n\n  spiffe://d/paramshard/w/node/3 \r\nspiffe://d/paramshard/w/temp-*\n");
  ASSERT_OK_AND_ASSIGN(const auto list, DenyList::Load(path_));
  EXPECT_TRUE(list->Names("spiffe://d/paramshard/w/node/3"));
  EXPECT_TRUE(list->Names("spiffe://d/paramshard/w/temp-7"));
  EXPECT_FALSE(list->Names("spiffe://d/paramshard/w/node/31"));
  EXPECT_FALSE(list->Names("# gone in May"));
}

TEST_F(DenyListTest, IsReadAgain) {
  Write("");
  ASSERT_OK_AND_ASSIGN(const auto list, DenyList::Load(path_, {.interval = absl::Milliseconds(1)}));
  EXPECT_FALSE(list->Names("a"));
  Write("a\n");
  AwaitName(*list, "a");
}

TEST_F(DenyListTest, TheLastOneHoldsWhileTheFileIsGone) {
  struct Disk {
    absl::Notification read_again;
    int reads = 0;
  };
  const auto disk = std::make_shared<Disk>();
  const auto read = [disk](const std::string&) -> absl::StatusOr<std::string> {
    if (++disk->reads == 1) return "a\n";
    if (disk->reads == 3) disk->read_again.Notify();
    return absl::NotFoundError("gone");
  };
  ASSERT_OK_AND_ASSIGN(const auto list, DenyList::Load(path_, {.interval = absl::Milliseconds(1), .read = read}));
  disk->read_again.WaitForNotification();
  EXPECT_TRUE(list->Names("a"));
}

// The file may be on another machine.
TEST_F(DenyListTest, NobodyWaitsForAReadThatHangs) {
  struct Disk {
    absl::Notification hangs;
    absl::Notification goes_on;
    int reads = 0;
  };
  const auto disk = std::make_shared<Disk>();
  const auto read = [disk](const std::string&) -> absl::StatusOr<std::string> {
    if (++disk->reads == 1) return "a\n";
    disk->hangs.Notify();
    disk->goes_on.WaitForNotification();
    return "";
  };
  ASSERT_OK_AND_ASSIGN(auto list, DenyList::Load(path_, {.interval = absl::Milliseconds(1), .read = read}));
  disk->hangs.WaitForNotification();
  EXPECT_TRUE(list->Names("a"));
  list.reset();
  disk->goes_on.Notify();
}

TEST_F(DenyListTest, AFileThatIsNotThereIsRefusedAtTheStart) {
  EXPECT_THAT(DenyList::Load(path_).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr("--tls-deny-file"), HasSubstr(path_))));
}

}  // namespace
}  // namespace paramshard::server
