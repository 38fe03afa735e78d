#include "server/checkpoints/publisher.h"

#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/step_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoints/checkpoint_choice.h"
#include "tests/server/base/simulated_disk.h"
#include "tests/server/checkpoints/saved_shards.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::server {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Fails what it is told to.
class SwitchedCalls final : public QuickCalls {
 public:
  bool rename_fails = false;
  bool rename_is_done = false;  // although it fails
  std::string failing_fsync;    // of the folder of this path
  int64_t free_bytes = -1;      // where set

  int Open(const std::string& path, int flags, mode_t mode) override {
    const int fd = DiskCalls::Open(path, flags, mode);
    if (path == failing_fsync) failing_fd_ = fd;
    return fd;
  }
  int Fsync(int fd) override {
    if (failing_fsync.empty() || fd != failing_fd_) return QuickCalls::Fsync(fd);
    errno = EIO;
    return -1;
  }
  int Close(int fd) override {
    if (fd == failing_fd_) failing_fd_ = -1;
    return DiskCalls::Close(fd);
  }
  int Rename(const std::string& from, const std::string& to) override {
    if (!rename_fails || rename_is_done) DiskCalls::Rename(from, to);
    errno = EIO;
    return rename_fails ? -1 : 0;
  }
  int64_t FreeBytes(const std::string& path) override {
    return free_bytes >= 0 ? free_bytes : DiskCalls::FreeBytes(path);
  }

 private:
  int failing_fd_ = -1;
};

class PublisherTest : public testing::Test {
 protected:
  PublisherTest() : PublisherTest(checkpoint::TinySpec(), {}) {}
  PublisherTest(const ModelSpec& spec, const SavedShards::Options& options)
      : shards_(spec, /*seed=*/2, options), folder_(ModelFolder(root_.path(), spec.name)) {}

  std::unique_ptr<Publisher> Open() {
    auto publisher = Publisher::Open(&calls_, root_.path(), shards_.spec());
    EXPECT_OK(publisher);
    return *std::move(publisher);
  }
  Publisher::Result Save(Publisher& publisher, int64_t step) { return shards_.Save(&calls_, publisher, folder_, step); }

  const test::TemporaryDirectory root_;
  SwitchedCalls calls_;
  SavedShards shards_;
  const std::string folder_;
};

// Header limits so that some files are split; both cuts of ranks over daemons.
class EveryArrayTest : public PublisherTest, public testing::WithParamInterface<SavedShards::Options> {
 protected:
  EveryArrayTest() : PublisherTest(checkpoint::SpecOfEverything(), GetParam()) {}
};

TEST_P(EveryArrayTest, EveryByteOfTheShardsIsInTheCheckpoint) {
  const auto publisher = Open();
  const Publisher::Result result = Save(*publisher, 100);
  ASSERT_OK(result.status);
  EXPECT_EQ(result.state, SaveState::kPublished);
  EXPECT_EQ(result.save_serial, 1);
  EXPECT_FALSE(publisher->in_doubt());
  shards_.ExpectSaved(result.path, 100);
  ASSERT_OK_AND_ASSIGN(const checkpoint::StepEntry latest, checkpoint::LatestStep(folder_));
  EXPECT_EQ(latest.path, result.path);
  EXPECT_EQ(latest.manifest->size_bytes(), result.size_bytes);
  EXPECT_THAT(NamesIn(folder_),
              ElementsAre("lock", checkpoint::StepFolderName(100, SavedShards::IdentityOf(100).history)));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds, EveryArrayTest,
    testing::Values(SavedShards::Options{.world = {.size = 1, .shard_size = 1}, .ranks_per_node = 1},
                    SavedShards::Options{.world = {.size = 4, .shard_size = 2}, .ranks_per_node = 2},
                    SavedShards::Options{.world = {.size = 3, .shard_size = 3}, .ranks_per_node = 2},
                    SavedShards::Options{
                        .world = {.size = 6, .shard_size = 2}, .ranks_per_node = 4, .max_header_bytes = 6000}));

TEST_F(PublisherTest, TheNextSaveHasTheNextSerialWhateverItsStep) {
  const auto publisher = Open();
  EXPECT_EQ(Save(*publisher, 50).save_serial, 1);
  EXPECT_EQ(Save(*publisher, 20).save_serial, 2);
  EXPECT_EQ(LatestStepIn(folder_), 20);
}

TEST_F(PublisherTest, SerialsGoOnAfterAStart) {
  EXPECT_EQ(Save(*Open(), 50).save_serial, 1);
  EXPECT_EQ(Save(*Open(), 40).save_serial, 2);
  // The serial of a damaged checkpoint is not known: it may be the next one.
  std::string manifest = folder_ + "/" + NamesIn(folder_)[1] + "/" + checkpoint::kManifestFileName;
  ASSERT_EQ(truncate(manifest.c_str(), 10), 0);
  EXPECT_EQ(Save(*Open(), 60).save_serial, 3);
}

TEST_F(PublisherTest, ASavedStepIsNotSavedAgain) {
  const auto publisher = Open();
  EXPECT_OK(Save(*publisher, 50).status);
  EXPECT_THAT(publisher->Begin(SavedShards::IdentityOf(50), shards_.world()),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("step-000000000050-01234567")));
  EXPECT_OK(Save(*publisher, 51).status);
}

TEST_F(PublisherTest, WhatIsSavedIsFoundByEveryPublisher) {
  const Publisher::Result saved = Save(*Open(), 50);
  ASSERT_OK(saved.status);
  const auto publisher = Open();
  SaveIdentity identity = SavedShards::IdentityOf(50);
  const Publisher::Result found = publisher->FindSaved(identity);
  EXPECT_EQ(found.state, SaveState::kAlreadySaved);
  EXPECT_OK(found.status);
  EXPECT_EQ(found.path, saved.path);
  EXPECT_EQ(found.size_bytes, saved.size_bytes);
  EXPECT_EQ(found.save_serial, saved.save_serial);
  // The name has the first digits of a history alone.
  ++identity.history;
  EXPECT_EQ(publisher->FindSaved(identity).state, SaveState::kAbandoned);
  EXPECT_THAT(publisher->FindSaved(identity).status, StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_EQ(publisher->FindSaved(SavedShards::IdentityOf(51)).state, SaveState::kAbandoned);
  EXPECT_THAT(publisher->FindSaved(SavedShards::IdentityOf(51)).status, StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(PublisherTest, WhatIsInDoubtIsNotSavedAlready) {
  const auto publisher = Open();
  calls_.failing_fsync = folder_;
  EXPECT_EQ(Save(*publisher, 50).state, SaveState::kUnknown);
  calls_.failing_fsync = "";
  const Publisher::Result found = publisher->FindSaved(SavedShards::IdentityOf(50));
  EXPECT_EQ(found.state, SaveState::kUnknown);
  EXPECT_THAT(found.status, StatusIs(absl::StatusCode::kFailedPrecondition));
  ASSERT_OK(Save(*publisher, 51).status);
  EXPECT_EQ(publisher->FindSaved(SavedShards::IdentityOf(50)).state, SaveState::kAlreadySaved);
}

TEST_F(PublisherTest, OneSaveIsUnderWayAtATime) {
  const auto publisher = Open();
  ASSERT_OK(publisher->Begin(SavedShards::IdentityOf(50), shards_.world()));
  EXPECT_THAT(publisher->Begin(SavedShards::IdentityOf(51), shards_.world()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("step 50")));
  ASSERT_OK(publisher->Abandon());
  EXPECT_OK(publisher->Begin(SavedShards::IdentityOf(51), shards_.world()));
}

TEST_F(PublisherTest, ASecondPublisherIsRefused) {
  const auto publisher = Open();
  EXPECT_THAT(Publisher::Open(&calls_, root_.path(), shards_.spec()).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("another daemon")));
}

TEST_F(PublisherTest, TooFewFreeBytesAreFoundBeforeAnythingIsWritten) {
  const auto publisher = Open();
  calls_.free_bytes = 1000;
  EXPECT_THAT(publisher->Begin(SavedShards::IdentityOf(50), shards_.world()),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("1000 free")));
  EXPECT_THAT(NamesIn(folder_), ElementsAre("lock"));
}

TEST_F(PublisherTest, LeftoversGoAtTheStartAndAtTheNextSave) {
  {
    const auto publisher = Open();
    ASSERT_OK(publisher->Begin(SavedShards::IdentityOf(50), shards_.world()));
    ASSERT_OK(shards_.WriteParts(&calls_, folder_, 50));
  }
  EXPECT_EQ(NamesIn(folder_).size(), 2);
  const auto publisher = Open();
  EXPECT_OK(publisher->leftovers());
  EXPECT_THAT(NamesIn(folder_), ElementsAre("lock"));
  // One that comes to be while it is open, as from a daemon that has not heard of the end.
  const std::string stray = folder_ + "/" + checkpoint::TemporaryFolderName(7, 7, 7);
  fs::create_directories(stray);
  fs::create_directories(stray + "/folder");
  ASSERT_OK(publisher->Begin(SavedShards::IdentityOf(50), shards_.world()));
  EXPECT_FALSE(publisher->leftovers().ok());
  ASSERT_OK(publisher->Abandon());
  EXPECT_FALSE(publisher->leftovers().ok()) << "it is still there";
  fs::remove(stray + "/folder");
  ASSERT_OK(publisher->Begin(SavedShards::IdentityOf(50), shards_.world()));
  EXPECT_OK(publisher->leftovers());
  EXPECT_FALSE(fs::exists(stray));
}

TEST_F(PublisherTest, WhatAnAbandonedSaveLeavesIsAmongTheLeftovers) {
  const auto publisher = Open();
  ASSERT_OK(publisher->Begin(SavedShards::IdentityOf(50), shards_.world()));
  const StagingDirectory folder(Disk(&calls_), folder_, SavedShards::IdentityOf(50));
  fs::create_directory(folder.path() + "/folder");
  EXPECT_FALSE(publisher->Abandon().ok());
  EXPECT_THAT(publisher->leftovers(), StatusIs(testing::_, HasSubstr(folder.path())));
}

TEST_F(PublisherTest, AMissingPartAbandonsTheSave) {
  const auto publisher = Open();
  ASSERT_OK(publisher->Begin(SavedShards::IdentityOf(50), shards_.world()));
  ASSERT_OK_AND_ASSIGN(const auto reports, shards_.WriteParts(&calls_, folder_, 50));
  const StagingDirectory folder(Disk(&calls_), folder_, SavedShards::IdentityOf(50));
  fs::remove(folder.path() + "/part-00001.json");
  const Publisher::Result result = publisher->Publish(reports, shards_.CommonOf(50), {});
  EXPECT_EQ(result.state, SaveState::kAbandoned);
  EXPECT_THAT(result.status, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("does node 1 share")));
  EXPECT_THAT(NamesIn(folder_), ElementsAre("lock"));
}

TEST_F(PublisherTest, AnOlderPartAbandonsTheSave) {
  const auto publisher = Open();
  ASSERT_OK(publisher->Begin(SavedShards::IdentityOf(50), shards_.world()));
  ASSERT_OK_AND_ASSIGN(auto reports, shards_.WriteParts(&calls_, folder_, 50));
  reports[0].hash += 1;
  const Publisher::Result result = publisher->Publish(reports, shards_.CommonOf(50), {});
  EXPECT_EQ(result.state, SaveState::kAbandoned);
  EXPECT_THAT(result.status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("part-00001.json")));
}

TEST_F(PublisherTest, AReportThatIsMissingAbandonsTheSave) {
  const auto publisher = Open();
  ASSERT_OK(publisher->Begin(SavedShards::IdentityOf(50), shards_.world()));
  ASSERT_OK_AND_ASSIGN(auto reports, shards_.WriteParts(&calls_, folder_, 50));
  reports.erase(reports.begin());
  const Publisher::Result result = publisher->Publish(reports, shards_.CommonOf(50), {});
  EXPECT_EQ(result.state, SaveState::kAbandoned);
  EXPECT_THAT(result.status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank-00002-of-00004")));
}

TEST_F(PublisherTest, DaemonsThatDifferInStepCountsAbandonTheSave) {
  // A replica on the other daemon.
  Shard& shard = shards_.shard(2);
  shard.SetStep(shard.extents()[0], 12345);
  ASSERT_OK(shards_.image(2).Fill(shard, "", AnyState));
  ASSERT_OK(shards_.image(2).Hash(absl::OkStatus));
  const Publisher::Result result = Save(*Open(), 50);
  EXPECT_EQ(result.state, SaveState::kAbandoned);
  EXPECT_THAT(result.status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("12345")));
}

TEST_F(PublisherTest, WhatARestoreWouldRefuseIsNotPublished) {
  const auto publisher = Open();
  ASSERT_OK(publisher->Begin(SavedShards::IdentityOf(50), shards_.world()));
  ASSERT_OK_AND_ASSIGN(const auto reports, shards_.WriteParts(&calls_, folder_, 50));
  const StagingDirectory folder(Disk(&calls_), folder_, SavedShards::IdentityOf(50));
  ASSERT_EQ(chmod((folder.path() + "/rank-00003-of-00004.safetensors").c_str(), 0666), 0);
  const Publisher::Result result = publisher->Publish(reports, shards_.CommonOf(50), {});
  EXPECT_EQ(result.state, SaveState::kAbandoned);
  EXPECT_THAT(result.status, StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("rank-00003")));
  EXPECT_THAT(NamesIn(folder_), ElementsAre("lock"));
}

TEST_F(PublisherTest, ADaemonWritesNothingIntoASaveThatWasGivenUp) {
  const auto publisher = Open();
  ASSERT_OK(publisher->Begin(SavedShards::IdentityOf(50), shards_.world()));
  ASSERT_OK(publisher->Abandon());
  EXPECT_THAT(shards_.WriteParts(&calls_, folder_, 50).status(), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(NamesIn(folder_), ElementsAre("lock"));
}

TEST_F(PublisherTest, NothingIsDeletedUntilALaterRenameIsOnTheDisk) {
  const auto publisher = Open();
  ASSERT_OK(Save(*publisher, 50).status);
  ASSERT_OK(Save(*publisher, 51).status);
  calls_.failing_fsync = folder_;
  const Publisher::Result unknown = Save(*publisher, 52);
  EXPECT_EQ(unknown.state, SaveState::kUnknown);
  EXPECT_THAT(unknown.status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr(folder_ + ": fsync")));
  EXPECT_EQ(unknown.save_serial, 3);
  EXPECT_TRUE(publisher->in_doubt());
  calls_.failing_fsync = "";
  EXPECT_THAT(publisher->Retain({.newest = 1}, NotRead).status, StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(NamesIn(folder_).size(), 4);
  // One that is abandoned changes nothing.
  calls_.rename_fails = true;
  EXPECT_EQ(Save(*publisher, 53).state, SaveState::kAbandoned);
  calls_.rename_fails = false;
  EXPECT_TRUE(publisher->in_doubt());

  const Publisher::Result published = Save(*publisher, 54);
  EXPECT_EQ(published.state, SaveState::kPublished);
  EXPECT_EQ(published.save_serial, 4);
  EXPECT_EQ(publisher->Retain({.newest = 1}, NotRead).deleted, 3);
  EXPECT_EQ(LatestStepIn(folder_), 54);
}

TEST_F(PublisherTest, ARenameThatIsDoneAlthoughItFailsIsUnknown) {
  const auto publisher = Open();
  calls_.rename_fails = true;
  EXPECT_EQ(Save(*publisher, 50).state, SaveState::kAbandoned);
  calls_.rename_is_done = true;
  const Publisher::Result result = Save(*publisher, 51);
  EXPECT_EQ(result.state, SaveState::kUnknown);
  EXPECT_FALSE(result.status.ok());
  EXPECT_EQ(LatestStepIn(folder_), 51);
}

TEST_F(PublisherTest, AFolderThatCannotBeSyncedAtTheStartIsInDoubt) {
  ASSERT_OK(Open()->Begin(SavedShards::IdentityOf(50), shards_.world()));
  calls_.failing_fsync = folder_;
  const auto publisher = Open();
  EXPECT_TRUE(publisher->in_doubt());
  EXPECT_FALSE(publisher->leftovers().ok());
  EXPECT_EQ(NamesIn(folder_).size(), 2);
}

// A state of some megabytes for each rank: headers, sums, manifest and spec hardly count.
class TallPublisherTest : public PublisherTest {
 protected:
  static constexpr int64_t kRows = 20'000;
  TallPublisherTest()
      : PublisherTest(checkpoint::TallSpec(kRows), {.world = {.size = 4, .shard_size = 4}, .ranks_per_node = 4}) {}
};

TEST_F(TallPublisherTest, FilesAreHardlyLargerThanTheState) {
  const auto publisher = Open();
  ASSERT_EQ(Save(*publisher, 50).state, SaveState::kPublished);
  int64_t file_bytes = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder_)) {
    if (entry.is_regular_file()) file_bytes += static_cast<int64_t>(entry.file_size());
  }
  constexpr int64_t kStateBytes = kRows * 257 * 3 * 4;  // master and moments
  RecordProperty("file_bytes", absl::StrCat(file_bytes));
  RecordProperty("state_bytes", absl::StrCat(kStateBytes));
  EXPECT_GE(file_bytes, kStateBytes);
  EXPECT_LE(static_cast<double>(file_bytes), 1.001 * kStateBytes);
}

}  // namespace
}  // namespace paramshard::server
