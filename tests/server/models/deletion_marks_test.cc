#include "server/models/deletion_marks.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/device/memory.h"
#include "tests/server/keeper/fake_kept_store.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class DeletionMarksTest : public testing::Test {
 protected:
  // Marks as the next server reads them.
  void TakeOver(DeletionMarks& marks) {
    ASSERT_OK_AND_ASSIGN(KeptStore::Descriptors all, kept_.TakeAll());
    marks.TakeOver(all);
    EXPECT_THAT(all, IsEmpty()) << "what is of no model is taken out";
  }
  void Keep(const std::string& text) {
    ASSERT_OK_AND_ASSIGN(KeptStore::Descriptors all, kept_.TakeAll());
    ASSERT_THAT(all, SizeIs(1));
    ASSERT_OK_AND_ASSIGN(Memory memory, Memory::Allocate("test", static_cast<int64_t>(text.size()), Sharing::kKept));
    std::copy(text.begin(), text.end(), memory.data());
    ASSERT_OK(kept_.Keep(all.begin()->first, memory.fd()));
  }

  FakeKeptStore kept_;
};

TEST_F(DeletionMarksTest, HaveSerialNumbersOverAllNames) {
  DeletionMarks marks(nullptr);
  EXPECT_EQ(marks.SerialOf("a"), 0);
  for (const char* const name : {"a", "b", "a b"}) ASSERT_OK(marks.Add(name));
  EXPECT_EQ(marks.SerialOf("a"), 1);
  EXPECT_EQ(marks.SerialOf("a b"), 3);
  ASSERT_OK(marks.Add("a"));
  EXPECT_EQ(marks.SerialOf("a"), 4);
  EXPECT_EQ(marks.SerialOf("b"), 2);
}

TEST_F(DeletionMarksTest, OutliveTheServer) {
  DeletionMarks first(&kept_);
  for (const char* const name : {"a", "b c", "a"}) ASSERT_OK(first.Add(name));
  DeletionMarks second(&kept_);
  TakeOver(second);
  EXPECT_EQ(second.SerialOf("a"), 3);
  EXPECT_EQ(second.SerialOf("b c"), 2);
  ASSERT_OK(second.Add("d"));
  EXPECT_EQ(second.SerialOf("d"), 4);
}

TEST_F(DeletionMarksTest, OldOnesGiveWayAndNumbersGoOn) {
  DeletionMarks marks(&kept_);
  const int64_t count = DeletionMarks::kMostMarks + 10;
  for (int64_t i = 1; i <= count; ++i) ASSERT_OK(marks.Add(absl::StrCat("m", i)));
  DeletionMarks next(&kept_);
  TakeOver(next);
  EXPECT_EQ(next.SerialOf("m10"), 0);
  EXPECT_EQ(next.SerialOf("m11"), 11);
  ASSERT_OK(next.Add("m10"));
  EXPECT_EQ(next.SerialOf("m10"), count + 1);
}

TEST_F(DeletionMarksTest, BytesThatAreNoMarksAreIgnored) {
  DeletionMarks first(&kept_);
  ASSERT_OK(first.Add("a"));
  const std::string unordered = absl::StrCat("2 a", absl::string_view("\0", 1), "1 b");
  for (const std::string& text : {std::string("x a"), unordered, std::string("-1 a"), std::string("1")}) {
    ASSERT_NO_FATAL_FAILURE(Keep(text));
    DeletionMarks marks(&kept_);
    TakeOver(marks);
    EXPECT_EQ(marks.SerialOf("a"), 0) << text;
  }
}

}  // namespace
}  // namespace paramshard::server
