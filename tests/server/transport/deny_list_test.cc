#include "server/transport/deny_list.h"

#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/store/manual_clock.h"
#include "tests/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DenyListTest : public testing::Test {
 protected:
  void Write(const std::string& text) const { std::ofstream(path_) << text; }

  const test::TemporaryDirectory folder_;
  const std::string path_ = folder_.path() + "/deny";
  ManualClock clock_;
};

TEST_F(DenyListTest, NamesWhatALineHas) {
  Write("# gone in May\n\n  spiffe://d/paramshard/w/node/3 \r\nspiffe://d/paramshard/w/temp-*\n");
  ASSERT_OK_AND_ASSIGN(const auto list, DenyList::Load(path_, clock_));
  EXPECT_TRUE(list->Names("spiffe://d/paramshard/w/node/3"));
  EXPECT_TRUE(list->Names("spiffe://d/paramshard/w/temp-7"));
  EXPECT_FALSE(list->Names("spiffe://d/paramshard/w/node/31"));
  EXPECT_FALSE(list->Names("# gone in May"));
}

TEST_F(DenyListTest, IsReadAgainEveryTwoSeconds) {
  Write("");
  ASSERT_OK_AND_ASSIGN(const auto list, DenyList::Load(path_, clock_));
  Write("a\n");
  EXPECT_FALSE(list->Names("a"));
  clock_.Advance(absl::Seconds(2));
  EXPECT_TRUE(list->Names("a"));
}

TEST_F(DenyListTest, TheLastOneHoldsWhileTheFileIsGone) {
  Write("a\n");
  ASSERT_OK_AND_ASSIGN(const auto list, DenyList::Load(path_, clock_));
  unlink(path_.c_str());
  clock_.Advance(absl::Seconds(2));
  EXPECT_TRUE(list->Names("a"));
}

TEST_F(DenyListTest, AFileThatIsNotThereIsRefusedAtTheStart) {
  EXPECT_THAT(DenyList::Load(path_, clock_).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr("--tls-deny-file"), HasSubstr(path_))));
}

}  // namespace
}  // namespace paramshard::server
