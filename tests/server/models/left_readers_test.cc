#include "server/models/left_readers.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr absl::Duration kLong = absl::Hours(1);

class LeftReadersTest : public testing::Test {
 protected:
  // A model with a reader, which is deleted.
  void Delete(const std::string& model, LeftReaders& left) {
    ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Publication> publication, Publication::Create({}));
    ASSERT_OK_AND_ASSIGN(reader_, publication->AddReader({.name = "eval", .pid = 12, .mapped_bytes = 4096}));
    publication->End("deleted");
    left.Watch(model, publication);
  }

  const std::shared_ptr<ThrottledLog> log_ = std::make_shared<ThrottledLog>();
  std::unique_ptr<Publication::Reader> reader_;
};

TEST_F(LeftReadersTest, AreListedUntilTheyLetGo) {
  LeftReaders left(log_, kLong);
  EXPECT_THAT(left.List(), IsEmpty());
  Delete("m", left);
  ASSERT_THAT(left.List(), SizeIs(1));
  EXPECT_EQ(left.List()[0].model, "m");
  EXPECT_EQ(left.List()[0].report.name, "eval");
  EXPECT_EQ(left.List()[0].report.mapped_bytes, 4096);
  reader_.reset();
  EXPECT_THAT(left.List(), IsEmpty());
}

TEST_F(LeftReadersTest, AModelWithoutReadersIsNotWatched) {
  LeftReaders left(log_, kLong);
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Publication> publication, Publication::Create({}));
  publication->End("deleted");
  left.Watch("m", publication);
  ASSERT_OK_AND_ASSIGN(reader_, (*Publication::Create({}))->AddReader({}));
  EXPECT_THAT(left.List(), IsEmpty());
}

TEST_F(LeftReadersTest, AreNamedAfterTheGrace) {
  testing::internal::CaptureStderr();
  {
    LeftReaders left(log_, absl::ZeroDuration());
    Delete("first", left);
    std::unique_ptr<Publication::Reader> first = std::move(reader_);
    left.AwaitGraces();
    Delete("second", left);
    left.AwaitGraces();
    first.reset();
    Delete("third", left);
    EXPECT_THAT(left.List(), SizeIs(1)) << "the reader of the second has left, too";
    left.AwaitGraces();
  }
  const std::string lines = testing::internal::GetCapturedStderr();
  for (const char* model : {"first", "second", "third"}) {
    EXPECT_THAT(lines, HasSubstr(absl::StrCat("reader still holds memory of a deleted model model=", model,
                                              " reader=eval pid=12 bytes=4096")));
  }
}

TEST_F(LeftReadersTest, OneThatHasLetGoIsNotNamed) {
  testing::internal::CaptureStderr();
  {
    LeftReaders left(log_, absl::Milliseconds(50));
    Delete("m", left);
    reader_.reset();
    left.AwaitGraces();
    Delete("n", left);
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(), Not(HasSubstr("deleted model"))) << "the end does not wait";
}

}  // namespace
}  // namespace paramshard::server
