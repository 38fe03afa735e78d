#include "server/keeper/descriptor_store.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/kept_store.h"
#include "server/keeper/keeper_message.h"
#include "tests/server/keeper/memory_file.h"
#include "tests/support/process_counts.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using test::BytesOf;
using test::MemoryFile;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(DescriptorStoreTest, MoreThanTheLimitIsRefusedAndAnotherOfANameIsNot) {
  DescriptorStore kept({.descriptors = 2});
  ASSERT_OK(kept.Keep("a", MemoryFile("1")));
  ASSERT_OK(kept.Keep("b", MemoryFile("2")));
  EXPECT_THAT(kept.Keep("c", MemoryFile("3")), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("at most 2")));
  EXPECT_OK(kept.Keep("b", MemoryFile("4")));
  EXPECT_EQ(BytesOf(kept.After("a").entries.at(0).second), "4");
  kept.DropPrefix("a");
  EXPECT_OK(kept.Keep("c", MemoryFile("3")));
}

TEST(DescriptorStoreTest, BytesOfNamesAreBoundedAndComeBackWithADrop) {
  DescriptorStore kept({.descriptors = 10, .name_bytes = 8});
  ASSERT_OK(kept.Keep("12345", MemoryFile("")));
  EXPECT_THAT(kept.Keep("6789", MemoryFile("")), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(kept.DropPrefix("1"), 1U);
  EXPECT_OK(kept.Keep("6789", MemoryFile("")));
}

TEST(DescriptorStoreTest, WhatIsNoMemoryIsRefused) {
  DescriptorStore kept;
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const wire::FileDescriptor other(ends[1]);
  EXPECT_THAT(kept.Keep("a", wire::FileDescriptor(ends[0])), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(kept.Keep("a", wire::FileDescriptor(open("/", O_RDONLY | O_CLOEXEC))),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(kept.Keep("a", wire::FileDescriptor()), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_TRUE(kept.empty());
}

TEST(DescriptorStoreTest, ReleasedDescriptorsAreClosedOnRequest) {
  const int64_t before = OpenDescriptors();
  DescriptorStore kept;
  ASSERT_OK(kept.Keep("a", MemoryFile("1")));
  ASSERT_OK(kept.Keep("a", MemoryFile("2")));
  ASSERT_OK(kept.Keep("b", MemoryFile("3")));
  EXPECT_EQ(kept.DropPrefix("b"), 1U);
  EXPECT_EQ(OpenDescriptors(), before + 3);
  kept.CloseReleased();
  EXPECT_EQ(OpenDescriptors(), before + 1);
}

// With names so long that a page holds few, and so short that it holds as many as one packet may.
TEST(DescriptorStoreTest, PagesHoldEverythingOnceInOrderAndFitIntoAnAnswer) {
  for (const size_t name_bytes : {size_t{8}, KeptStore::kMaxNameBytes}) {
    DescriptorStore kept;
    for (int i = 0; i < 600; ++i) {
      const std::string number = absl::StrCat(100'000 + i);
      ASSERT_OK(kept.Keep(number + std::string(name_bytes - number.size(), 'x'), MemoryFile("")));
    }
    size_t seen = 0;
    std::string last;
    for (bool more = true; more;) {
      const DescriptorStore::Page page = kept.After(last);
      more = page.more;
      KeeperMessage answer;
      for (const auto& [name, fd] : page.entries) {
        EXPECT_LT(last, name);
        answer.words.push_back(last = name);
      }
      seen += page.entries.size();
      ASSERT_OK(EncodeKeeperMessage(answer));
      ASSERT_LE(page.entries.size(), kMaxKeeperMessageDescriptors);
      ASSERT_FALSE(page.entries.empty());
    }
    EXPECT_EQ(seen, 600U);
    EXPECT_THAT(kept.After(last).entries, IsEmpty());
  }
}

}  // namespace
}  // namespace paramshard::server
