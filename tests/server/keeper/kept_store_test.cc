// The contract of KeptStore, on every implementation.

#include "server/base/kept_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/keeper/keeper_link.h"
#include "tests/server/keeper/fake_kept_store.h"
#include "tests/server/keeper/keeper_process.h"
#include "tests/server/keeper/memory_file.h"
#include "tests/support/process_counts.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using test::BytesOf;
using test::MemoryFile;
using testing::ElementsAre;
using testing::IsEmpty;

class FakeWorld {
 public:
  KeptStore& store() { return store_; }

 private:
  FakeKeptStore store_;
};

// The server of a real keeper lends its socket to the test, and sends nothing itself.
class KeeperWorld {
 public:
  KeeperWorld() {
    keeper_.AwaitBegin();
    keeper_.Ask("link");
    link_.emplace(keeper_.TakeDescriptor());
  }
  KeptStore& store() { return *link_; }

 private:
  KeeperProcess keeper_{{.flags = {"--lend"}}};
  std::optional<KeeperLink> link_;
};

template <typename World>
class KeptStoreTest : public testing::Test {
 protected:
  KeptStore& store() { return world_.store(); }
  std::vector<std::string> Taken() {
    std::vector<std::string> taken;
    absl::StatusOr<KeptStore::Descriptors> all = store().TakeAll();
    EXPECT_OK(all);
    if (!all.ok()) return {"nothing could be taken"};
    for (const auto& [name, fd] : *all) taken.push_back(absl::StrCat(name, "=", BytesOf(fd.get())));
    return taken;
  }

 private:
  World world_;
};

using Worlds = testing::Types<FakeWorld, KeeperWorld>;
TYPED_TEST_SUITE(KeptStoreTest, Worlds);

TYPED_TEST(KeptStoreTest, WhatIsKeptIsTakenAsOftenAsOneLikes) {
  EXPECT_THAT(this->Taken(), IsEmpty());
  ASSERT_OK(this->store().Keep("b", MemoryFile("2").get()));
  ASSERT_OK(this->store().Keep("a", MemoryFile("1").get()));
  EXPECT_THAT(this->Taken(), ElementsAre("a=1", "b=2"));
  EXPECT_THAT(this->Taken(), ElementsAre("a=1", "b=2"));
}

TYPED_TEST(KeptStoreTest, TakenDescriptorsAreOfTheSameMemoryAndCloseAtExec) {
  const wire::FileDescriptor file = MemoryFile("before");
  ASSERT_OK(this->store().Keep("a", file.get()));
  ASSERT_OK_AND_ASSIGN(const KeptStore::Descriptors taken, this->store().TakeAll());
  ASSERT_EQ(pwrite(taken.at("a").get(), "behind", 6, 0), 6);
  EXPECT_EQ(BytesOf(file.get()), "behind");
  EXPECT_EQ(fcntl(taken.at("a").get(), F_GETFD), FD_CLOEXEC);
}

TYPED_TEST(KeptStoreTest, AnotherOfTheSameNameTakesItsPlace) {
  ASSERT_OK(this->store().Keep("a", MemoryFile("1").get()));
  ASSERT_OK(this->store().Keep("a", MemoryFile("2").get()));
  EXPECT_THAT(this->Taken(), ElementsAre("a=2"));
}

TYPED_TEST(KeptStoreTest, ADropForgetsWhatBeginsSoAndNothingElse) {
  const std::string model("m\0", 2);
  for (const std::string& name : {model + "journal", model + "rank-0/master", std::string("m2\0journal", 10)}) {
    ASSERT_OK(this->store().Keep(name, MemoryFile("1").get()));
  }
  EXPECT_OK(this->store().DropPrefix("n"));
  EXPECT_OK(this->store().DropPrefix(model));
  EXPECT_THAT(this->Taken(), ElementsAre(std::string("m2\0journal=1", 12)));
  EXPECT_OK(this->store().DropPrefix(model));
}

TYPED_TEST(KeptStoreTest, WhatBeginsSoIsTakenAndNothingElse) {
  const std::string model("m\0", 2);
  const wire::FileDescriptor file = MemoryFile("1");
  constexpr int kPieces = 260;  // more than one message takes
  for (int i = 0; i < kPieces; ++i) ASSERT_OK(this->store().Keep(absl::StrCat(model, i), file.get()));
  for (const std::string& name : {std::string("l\0journal", 9), std::string("m"), std::string("m2\0journal", 10)}) {
    ASSERT_OK(this->store().Keep(name, file.get()));
  }
  ASSERT_OK_AND_ASSIGN(const KeptStore::Descriptors taken, this->store().Take(model));
  EXPECT_EQ(taken.size(), static_cast<size_t>(kPieces));
  for (const auto& [name, fd] : taken) EXPECT_TRUE(absl::StartsWith(name, model)) << name;
  ASSERT_OK_AND_ASSIGN(const KeptStore::Descriptors none, this->store().Take("n"));
  EXPECT_THAT(none, IsEmpty());
}

TYPED_TEST(KeptStoreTest, NamesMayBeAsLongAsTheyMayBeAndNoLonger) {
  const std::string longest(KeptStore::kMaxNameBytes, 'n');
  EXPECT_OK(this->store().Keep(longest, MemoryFile("1").get()));
  EXPECT_THAT(this->store().Keep(longest + "n", MemoryFile("2").get()), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(this->store().Keep("", MemoryFile("2").get()), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(this->Taken(), ElementsAre(longest + "=1"));
}

TYPED_TEST(KeptStoreTest, WhatIsNoMemoryIsRefusedAndLeavesWhatIsKeptAsItWas) {
  ASSERT_OK(this->store().Keep("a", MemoryFile("1").get()));
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const wire::FileDescriptor reader(ends[0]);
  const wire::FileDescriptor writer(ends[1]);
  EXPECT_THAT(this->store().Keep("a", reader.get()), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(this->store().Keep("a", -1), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(this->Taken(), ElementsAre("a=1"));
}

TYPED_TEST(KeptStoreTest, TheCallersDescriptorsStayTheirsAndNoneIsLeftBehind) {
  const wire::FileDescriptor file = MemoryFile("1");
  ASSERT_OK(this->store().Keep("a", file.get()));
  const int64_t before = OpenDescriptors();
  for (int i = 0; i < 20; ++i) {
    ASSERT_OK(this->store().Keep("a", file.get()));
    ASSERT_OK(this->store().TakeAll());
  }
  EXPECT_EQ(OpenDescriptors(), before);
  EXPECT_EQ(BytesOf(file.get()), "1");
}

}  // namespace
}  // namespace paramshard::server
