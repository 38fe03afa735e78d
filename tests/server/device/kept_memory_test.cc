// Memory of a model that a keeper holds too, on a device of the kind that PARAMSHARD_TEST_DEVICES says.
#include "server/device/kept_memory.h"

#include <fcntl.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/keeper/fake_kept_store.h"
#include "tests/support/environment.h"
#include "tests/support/process_counts.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kBytes = 100'000;
const std::string kMaster = PieceName(3, "master");

std::string Key(absl::string_view model, absl::string_view piece) {
  return absl::StrCat(model, absl::string_view("\0", 1), piece);
}

// A store whose calls fail on request. `before_drop` runs before a call fails or is carried out.
class FaultyStore final : public KeptStore {
 public:
  absl::Status fault;
  std::function<void()> before_drop = [] {};
  size_t most_taken = 0;  // descriptors, by one call

  absl::Status Keep(absl::string_view name, int fd) override { return fault.ok() ? inner_.Keep(name, fd) : fault; }
  absl::Status DropPrefix(absl::string_view prefix) override {
    before_drop();
    return fault.ok() ? inner_.DropPrefix(prefix) : fault;
  }
  absl::StatusOr<Descriptors> Take(absl::string_view prefix) override {
    absl::StatusOr<Descriptors> taken = inner_.Take(prefix);
    if (taken.ok()) most_taken = std::max(most_taken, taken->size());
    return taken;
  }

  std::vector<std::string> Names() {
    std::vector<std::string> names;
    absl::StatusOr<Descriptors> all = TakeAll();
    EXPECT_OK(all);
    for (const auto& [name, fd] : *all) names.push_back(name);
    return names;
  }

 private:
  FakeKeptStore inner_;
};

class KeptMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(const Device id, ParseDevice(absl::StrCat(test::TestDevices(), ":0")));
    absl::StatusOr<std::vector<std::unique_ptr<ComputeDevice>>> devices = OpenDevices({id});
    if (!devices.ok() && id.kind == DeviceKind::kCuda) GTEST_SKIP() << devices.status();
    ASSERT_OK(devices.status());
    device_ = std::move(devices->front());
  }

  KeptMemory Adopted(const std::string& model = "m") {
    absl::StatusOr<KeptStore::Descriptors> all = store_.TakeAll();
    EXPECT_OK(all);
    return KeptMemory(model, &store_, std::move(KeptModels::Sort(*std::move(all)).models[model]));
  }
  // Leaves the memory of a server that ends at once.
  void LeaveBehind(uint8_t byte) {
    KeptMemory memory("m", &store_);
    ASSERT_OK_AND_ASSIGN(const Memory* const master, memory.Piece(kMaster, kBytes, *device_));
    ASSERT_OK(device_->Write(master->data(), std::vector<uint8_t>(kBytes, byte)));
  }
  std::vector<uint8_t> BytesOf(const Memory& memory) const {
    absl::StatusOr<HostView> view = device_->Read(memory.data(), memory.size_bytes());
    EXPECT_OK(view);
    return {view->data(), view->data() + view->size()};
  }

  FaultyStore store_;
  std::unique_ptr<ComputeDevice> device_;
};

TEST_F(KeptMemoryTest, PiecesAreZeroedAndKeptUnderTheModelsName) {
  KeptMemory memory("m", &store_);
  EXPECT_FALSE(memory.adopted());
  ASSERT_OK(memory.HostPiece(kJournalPiece, 64).status());
  ASSERT_OK_AND_ASSIGN(const Memory* const master, memory.Piece(kMaster, kBytes, *device_));
  EXPECT_EQ(BytesOf(*master), std::vector<uint8_t>(kBytes, 0));
  EXPECT_THAT(store_.Names(), ElementsAre(Key("m", "journal"), Key("m", "rank-3/master")));
}

TEST_F(KeptMemoryTest, TheNextServerFindsWhatTheOneBeforeItHasLeft) {
  LeaveBehind(7);
  KeptMemory memory = Adopted();
  EXPECT_TRUE(memory.adopted());
  ASSERT_OK_AND_ASSIGN(const Memory* const master, memory.Piece(kMaster, kBytes, *device_));
  EXPECT_EQ(BytesOf(*master), std::vector<uint8_t>(kBytes, 7));
  EXPECT_THAT(memory.unclaimed(), IsEmpty());
}

TEST_F(KeptMemoryTest, TheOneAfterTheNextFindsItToo) {
  LeaveBehind(7);
  {
    KeptMemory memory = Adopted();
    ASSERT_OK_AND_ASSIGN(const Memory* const master, memory.Piece(kMaster, kBytes, *device_));
    ASSERT_OK(device_->Write(master->data(), std::vector<uint8_t>(kBytes, 9)));
  }
  KeptMemory memory = Adopted();
  ASSERT_OK_AND_ASSIGN(const Memory* const master, memory.Piece(kMaster, kBytes, *device_));
  EXPECT_EQ(BytesOf(*master), std::vector<uint8_t>(kBytes, 9));
}

TEST_F(KeptMemoryTest, AJournalIsAdoptedInTheSizeThatItHas) {
  {
    KeptMemory memory("m", &store_);
    ASSERT_OK_AND_ASSIGN(const Memory* const journal, memory.HostPiece(kJournalPiece, 777));
    journal->data()[776] = 5;
  }
  KeptMemory memory = Adopted();
  ASSERT_OK_AND_ASSIGN(const Memory* const journal, memory.AdoptHostPiece(kJournalPiece));
  ASSERT_EQ(journal->size_bytes(), 777);
  EXPECT_EQ(journal->data()[776], 5);
}

TEST_F(KeptMemoryTest, APieceThatWasNotKeptIsNamed) {
  LeaveBehind(7);
  KeptMemory memory = Adopted();
  const auto is_lost = StatusIs(absl::StatusCode::kDataLoss, HasSubstr("m:rank-4/master: kept descriptor not found"));
  EXPECT_THAT(memory.Piece(PieceName(4, "master"), kBytes, *device_), is_lost);
  EXPECT_THAT(memory.AdoptHostPiece(kJournalPiece), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("m:journal")));
  EXPECT_THAT(memory.unclaimed(), ElementsAre(kMaster));
}

TEST_F(KeptMemoryTest, APieceThatIsTooSmallIsNamed) {
  LeaveBehind(7);
  KeptMemory memory = Adopted();
  // More than a GPU rounds it up to.
  EXPECT_THAT(memory.Piece(kMaster, int64_t{64} << 20, *device_),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("m:rank-3/master")));
}

TEST_F(KeptMemoryTest, ADescriptorOfSomethingElseIsNamed) {
  const wire::FileDescriptor other(open("/dev/null", O_RDWR | O_CLOEXEC));
  ASSERT_OK(store_.Keep(Key("m", kMaster), other.get()));
  KeptMemory memory = Adopted();
  EXPECT_THAT(memory.Piece(kMaster, kBytes, *device_),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("m:rank-3/master")));
}

TEST_F(KeptMemoryTest, PiecesOfNothingAreNotKept) {
  KeptMemory memory("m", &store_);
  ASSERT_OK_AND_ASSIGN(const Memory* const none, memory.Piece(kMaster, 0, *device_));
  EXPECT_EQ(none->data(), nullptr);
  EXPECT_THAT(store_.Names(), IsEmpty());
  KeptMemory adopted = Adopted();
  EXPECT_OK(adopted.Piece(kMaster, 0, *device_).status());
}

TEST_F(KeptMemoryTest, APieceIsAskedForOnce) {
  KeptMemory memory("m", &store_);
  ASSERT_OK(memory.Piece(kMaster, kBytes, *device_).status());
  EXPECT_THAT(memory.Piece(kMaster, kBytes, *device_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("twice")));
  EXPECT_THAT(memory.HostPiece(kMaster, kBytes), StatusIs(absl::StatusCode::kInvalidArgument));
  PrivateStateMemory plain;
  ASSERT_OK(plain.Piece(kMaster, kBytes, *device_).status());
  EXPECT_THAT(plain.Piece(kMaster, kBytes, *device_), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(KeptMemoryTest, APieceThatCannotBeKeptIsNotHandedOut) {
  KeptMemory memory("m", &store_);
  store_.fault = absl::ResourceExhaustedError("the test lets it fail");
  const int64_t before = OpenDescriptors();
  EXPECT_THAT(memory.Piece(kMaster, kBytes, *device_),
              StatusIs(absl::StatusCode::kResourceExhausted, AllOf(HasSubstr("m:rank-3/master"), HasSubstr("fail"))));
  // A driver opens some for itself.
  EXPECT_TRUE(OpenDescriptors() == before || test::TestDevices() != "cpu");
  store_.fault = absl::OkStatus();
  EXPECT_OK(memory.Piece(kMaster, kBytes, *device_).status());
}

TEST_F(KeptMemoryTest, AModelIsTakenFromTheStoreBeforeItIsUnmapped) {
  KeptMemory memory("m", &store_);
  ASSERT_OK_AND_ASSIGN(const Memory* const master, memory.Piece(kMaster, kBytes, *device_));
  KeptMemory other("m2", &store_);
  ASSERT_OK(other.Piece(kMaster, kBytes, *device_).status());
  int64_t mapped = 0;
  store_.before_drop = [&] { mapped = static_cast<int64_t>(BytesOf(*master).size()); };
  ASSERT_OK(memory.Drop());
  EXPECT_EQ(mapped, kBytes);
  EXPECT_THAT(store_.Names(), ElementsAre(Key("m2", kMaster)));
}

TEST_F(KeptMemoryTest, ADropThatFailsLeavesTheMemoryAndMayBeRepeated) {
  KeptMemory memory("m", &store_);
  ASSERT_OK_AND_ASSIGN(const Memory* const master, memory.Piece(kMaster, kBytes, *device_));
  store_.fault = absl::DeadlineExceededError("the keeper does not answer");
  EXPECT_THAT(memory.Drop(), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(BytesOf(*master).size(), static_cast<size_t>(kBytes));
  store_.fault = absl::OkStatus();
  EXPECT_OK(memory.Drop());
  EXPECT_OK(memory.Drop());
  EXPECT_THAT(store_.Names(), IsEmpty());
}

TEST_F(KeptMemoryTest, AnAdoptedModelIsDroppedWithWhatNobodyAskedFor) {
  LeaveBehind(7);
  KeptMemory memory = Adopted();
  ASSERT_OK(memory.Drop());
  EXPECT_THAT(store_.Names(), IsEmpty());
  EXPECT_THAT(memory.unclaimed(), IsEmpty());
}

TEST_F(KeptMemoryTest, AllButAPieceIsDroppedWhoeverHasAskedForIt) {
  KeptMemory memory("m", &store_);
  ASSERT_OK(memory.HostPiece(kJournalPiece, kBytes));
  ASSERT_OK(memory.Piece(kMaster, kBytes, *device_));
  ASSERT_OK(KeptMemory("m", &store_).HostPiece(kLostPiece, kBytes));
  ASSERT_OK(KeptMemory("m", &store_).HostPiece("lost too", kBytes));
  ASSERT_OK(KeptMemory("lost", &store_).HostPiece(kJournalPiece, kBytes));
  ASSERT_OK(memory.DropAllBut(kLostPiece));
  EXPECT_THAT(store_.Names(), ElementsAre(Key("lost", kJournalPiece), Key("m", kLostPiece)));
  // A piece whose name the other's begins with cannot be taken without it.
  ASSERT_OK(KeptMemory("m", &store_).HostPiece("lo", kBytes));
  ASSERT_OK(memory.DropAllBut(kLostPiece));
  EXPECT_THAT(store_.Names(), ElementsAre(Key("lost", kJournalPiece), Key("m", "lo"), Key("m", kLostPiece)));
}

TEST_F(KeptMemoryTest, WhoeverDropsAllButAPieceOpensNoDescriptorsOfOtherModels) {
  KeptMemory memory("m", &store_);
  ASSERT_OK(memory.HostPiece(kJournalPiece, kBytes));
  ASSERT_OK(KeptMemory("l", &store_).HostPiece(kJournalPiece, kBytes));
  ASSERT_OK(KeptMemory("m2", &store_).HostPiece(kJournalPiece, kBytes));
  ASSERT_OK(memory.DropAllBut(kLostPiece));
  EXPECT_EQ(store_.most_taken, 1u);
  EXPECT_THAT(store_.Names(), ElementsAre(Key("l", kJournalPiece), Key("m2", kJournalPiece)));
}

TEST_F(KeptMemoryTest, PrivatePiecesAreZeroed) {
  PrivateStateMemory memory;
  EXPECT_FALSE(memory.adopted());
  ASSERT_OK_AND_ASSIGN(const Memory* const master, memory.Piece(kMaster, kBytes, *device_));
  EXPECT_EQ(BytesOf(*master), std::vector<uint8_t>(kBytes, 0));
  EXPECT_EQ(master->fd(), -1);
}

TEST(KeptModelsTest, NamesAreSortedByModelAndPiece) {
  KeptStore::Descriptors all;
  for (const std::string& name :
       {Key("a/b", "journal"), Key("a/b", "rank-0/master"), Key("a", "journal"), std::string("of another version")}) {
    all[name] = wire::FileDescriptor(open("/dev/null", O_RDWR | O_CLOEXEC));
  }
  const KeptModels sorted = KeptModels::Sort(std::move(all));
  ASSERT_EQ(sorted.models.size(), 2u);
  EXPECT_EQ(sorted.models.at("a/b").size(), 2u);
  EXPECT_TRUE(sorted.models.at("a/b").at("rank-0/master").valid());
  EXPECT_EQ(sorted.models.at("a").count("journal"), 1u);
  EXPECT_THAT(sorted.strangers, ElementsAre("of another version"));
}

}  // namespace
}  // namespace paramshard::server
