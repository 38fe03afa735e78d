#include "server/saves/disk.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/proto/checkpoint/saved_model.h"
#include "tests/server/saves/saved_shards.h"
#include "tests/server/saves/simulated_disk.h"
#include "tests/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::server {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Calls that do less than they are asked for, are interrupted, or are not there.
class AwkwardCalls final : public DiskCalls {
 public:
  int fsyncs = 0;
  int fsync_error = 0;
  int fallocate_error = 0;
  int flock_error = 0;
  bool writes_nothing = false;

  ssize_t Pwrite(int fd, const void* data, size_t size_bytes, int64_t offset_bytes) override {
    if (writes_nothing) return 0;
    // Every other call is interrupted, and the others write 3 bytes.
    if (interrupted_ = !interrupted_; interrupted_) return Fail(EINTR);
    return DiskCalls::Pwrite(fd, data, size_bytes < 3 ? size_bytes : 3, offset_bytes);
  }
  int Fsync(int fd) override {
    ++fsyncs;
    return fsync_error != 0 ? Fail(fsync_error) : DiskCalls::Fsync(fd);
  }
  int Fallocate(int fd, int64_t size_bytes) override {
    return fallocate_error != 0 ? Fail(fallocate_error) : DiskCalls::Fallocate(fd, size_bytes);
  }
  int Flock(int fd, int operation) override {
    return flock_error != 0 ? Fail(flock_error) : DiskCalls::Flock(fd, operation);
  }

 private:
  static int Fail(int error) {
    errno = error;
    return -1;
  }

  bool interrupted_ = false;
};

class DiskTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return root_.path() + "/" + name; }
  int OpenDescriptors() const { return static_cast<int>(NamesIn("/proc/self/fd").size()); }

  const test::TemporaryDirectory root_;
  AwkwardCalls calls_;
  const Disk disk_{&calls_};
};

TEST_F(DiskTest, ShortAndInterruptedWritesGoOn) {
  ASSERT_OK(disk_.WriteFile(Path("file"), "0123456789"));
  EXPECT_EQ(checkpoint::ReadText(Path("file")), "0123456789");
  EXPECT_EQ(calls_.fsyncs, 1);
}

TEST_F(DiskTest, AWriteOfNothingIsAnError) {
  calls_.writes_nothing = true;
  EXPECT_THAT(disk_.WriteFile(Path("file"), "text"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(Path("file") + ": write failed")));
}

TEST_F(DiskTest, AFailedFsyncIsNotMadeAgain) {
  for (const int error : {EIO, EINTR, ENOSPC}) {
    calls_.fsyncs = 0;
    calls_.fsync_error = error;
    EXPECT_FALSE(disk_.WriteFile(Path("file"), "text").ok());
    EXPECT_FALSE(disk_.SyncFolder(root_.path()).ok());
    EXPECT_EQ(calls_.fsyncs, 2);
    fs::remove(Path("file"));
  }
}

TEST_F(DiskTest, ErrorsNamePathAndCall) {
  calls_.fsync_error = EIO;
  EXPECT_THAT(disk_.WriteFile(Path("a"), "text"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(Path("a") + ": fsync failed: Input/output error")));
  calls_.fsync_error = ENOSPC;
  EXPECT_THAT(disk_.SyncFolder(root_.path()),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr(root_.path() + ": fsync of the folder failed")));
  EXPECT_THAT(disk_.WriteFile(Path("a"), "text"),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(Path("a") + ": create failed")));
  EXPECT_THAT(disk_.MakeFolder(Path("a")), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("mkdir failed")));
  EXPECT_THAT(disk_.Rename(Path("b"), Path("c")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(Path("b") + ": rename to c failed")));
  EXPECT_THAT(disk_.RemoveFile(Path("b")), StatusIs(absl::StatusCode::kNotFound, HasSubstr("unlink failed")));
}

TEST_F(DiskTest, AFileSystemThatCannotReserveIsWrittenToAllTheSame) {
  ASSERT_OK_AND_ASSIGN(Disk::File file, disk_.Create(Path("file")));
  calls_.fallocate_error = EOPNOTSUPP;
  EXPECT_OK(file.Reserve(100));
  calls_.fallocate_error = ENOSPC;
  EXPECT_THAT(file.Reserve(100), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("fallocate failed")));
}

TEST_F(DiskTest, NobodyElseMayWriteToWhatIsMade) {
  const mode_t umask_before = umask(0);
  EXPECT_OK(disk_.WriteFile(Path("file"), "text"));
  EXPECT_OK(disk_.MakeFolder(Path("folder")));
  umask(umask_before);
  for (const char* name : {"file", "folder"}) {
    ASSERT_OK_AND_ASSIGN(const Disk::Entry entry, disk_.Look(Path(name)));
    EXPECT_EQ(entry.mode & (S_IWGRP | S_IWOTH), 0) << name;
  }
}

TEST_F(DiskTest, ALinkIsNotWrittenThroughNorEmptied) {
  ASSERT_OK(disk_.MakeFolder(Path("folder")));
  ASSERT_OK(disk_.WriteFile(Path("folder/file"), "text"));
  fs::create_symlink(Path("folder/file"), Path("link"));
  EXPECT_THAT(disk_.WriteFile(Path("link"), "other"), StatusIs(absl::StatusCode::kAlreadyExists));
  fs::create_symlink(Path("folder"), Path("linked"));
  EXPECT_OK(disk_.RemoveFolder(Path("linked")));
  EXPECT_THAT(NamesIn(root_.path()), ElementsAre("folder", "link"));
  EXPECT_EQ(checkpoint::ReadText(Path("folder/file")), "text");
}

TEST_F(DiskTest, AFolderGoesAsFarAsItCan) {
  EXPECT_OK(disk_.RemoveFolder(Path("none")));
  fs::create_directories(Path("folder/within"));
  for (const char* name : {"folder/a", "folder/z"}) ASSERT_OK(disk_.WriteFile(Path(name), "text"));
  EXPECT_THAT(disk_.RemoveFolder(Path("folder")).ToString(), HasSubstr(Path("folder/within") + ": unlink failed"));
  EXPECT_THAT(NamesIn(Path("folder")), ElementsAre("within"));
  fs::remove(Path("folder/within"));
  EXPECT_OK(disk_.RemoveFolder(Path("folder")));
  EXPECT_THAT(NamesIn(root_.path()), IsEmpty());
}

TEST_F(DiskTest, ALockHasOneHolder) {
  {
    ASSERT_OK_AND_ASSIGN(const Disk::Descriptor lock, disk_.Lock(Path("lock")));
    EXPECT_THAT(disk_.Lock(Path("lock")).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("another daemon")));
  }
  EXPECT_OK(disk_.Lock(Path("lock")));
}

TEST_F(DiskTest, AFileSystemWithoutLocksIsRefused) {
  for (const int error : {ENOLCK, EOPNOTSUPP, ENOSYS, EINVAL, EBADF}) {
    calls_.flock_error = error;
    EXPECT_THAT(disk_.Lock(Path("lock")).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr(Path("lock") + ": flock failed"), HasSubstr("file system with locks"))));
  }
}

TEST_F(DiskTest, DescriptorsAreClosed) {
  const int before = OpenDescriptors();
  ASSERT_OK(disk_.WriteFile(Path("file"), "text"));
  ASSERT_OK(disk_.SyncFolder(root_.path()));
  ASSERT_OK(disk_.Lock(Path("lock")));
  calls_.fsync_error = EIO;
  EXPECT_FALSE(disk_.WriteFile(Path("other"), "text").ok());
  EXPECT_FALSE(disk_.SyncFolder(root_.path()).ok());
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(DiskTest, FreeBytesAreThoseOfTheFileSystem) {
  ASSERT_OK_AND_ASSIGN(const int64_t free_bytes, disk_.FreeBytes(root_.path()));
  EXPECT_GT(free_bytes, 0);
  EXPECT_THAT(disk_.FreeBytes(Path("none")).status(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("statvfs")));
}

}  // namespace
}  // namespace paramshard::server
