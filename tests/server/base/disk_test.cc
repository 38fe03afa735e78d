#include "server/base/disk.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/checkpoint/saved_model.h"
#include "tests/server/base/simulated_disk.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::server {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// System calls that do less than requested, are interrupted, or are not supported.
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

// System calls of a file system that supports O_DIRECT, or rejects it at once or at the write.
class PageCalls final : public DiskCalls {
 public:
  int set_direct_error = 0;
  int direct_write_error = 0;
  int64_t direct_bytes = 0;
  int64_t cached_bytes = 0;

  int SetDirect(int /*fd*/, bool direct) override {
    if (direct && set_direct_error != 0) return Fail(set_direct_error);
    is_direct_ = direct;
    return 0;
  }
  ssize_t Pwrite(int fd, const void* data, size_t size_bytes, int64_t offset_bytes) override {
    if (is_direct_ && direct_write_error != 0) return Fail(direct_write_error);
    if (is_direct_) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % kPage, 0);
      EXPECT_EQ(size_bytes % kPage, 0);
      EXPECT_EQ(offset_bytes % kPage, 0);
    }
    (is_direct_ ? direct_bytes : cached_bytes) += static_cast<int64_t>(size_bytes);
    return DiskCalls::Pwrite(fd, data, size_bytes, offset_bytes);
  }

  static constexpr int64_t kPage = 4096;

 private:
  static int Fail(int error) {
    errno = error;
    return -1;
  }
  bool is_direct_ = false;
};

class DiskPagesTest : public testing::Test {
 protected:
  static constexpr int64_t kPage = PageCalls::kPage;
  static constexpr int64_t kBytes = 3 * kPage + 17;

  // From a page of memory to an offset that is no multiple of a page in the second call.
  void WriteAll() {
    std::string memory(kBytes + kPage, ' ');
    const size_t before = kPage - reinterpret_cast<uintptr_t>(memory.data()) % kPage;
    for (int64_t i = 0; i < kBytes; ++i) memory[before + i] = static_cast<char>(i * 31 % 127);
    const auto bytes = absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(memory.data()) + before, kBytes);
    ASSERT_OK_AND_ASSIGN(Disk::File file, disk_.Create(path_));
    ASSERT_OK(file.WriteAt(0, bytes));
    ASSERT_OK(file.WriteAt(kBytes, bytes.subspan(kPage, 5)));
    ASSERT_OK(file.Sync());
    EXPECT_EQ(checkpoint::ReadText(path_), memory.substr(before, kBytes) + memory.substr(before + kPage, 5));
  }

  const test::TemporaryDirectory root_;
  const std::string path_ = root_.path() + "/file";
  PageCalls calls_;
  const Disk disk_{&calls_};
};

TEST_F(DiskPagesTest, WholePagesGoAroundTheCacheAndTheRestThroughIt) {
  WriteAll();
  EXPECT_EQ(calls_.direct_bytes, 3 * kPage);
  EXPECT_EQ(calls_.cached_bytes, 17 + 5);
}

TEST_F(DiskPagesTest, AFileSystemThatHasNoDirectWritesIsWrittenToAllTheSame) {
  calls_.set_direct_error = EINVAL;
  WriteAll();
  EXPECT_EQ(calls_.direct_bytes, 0);
}

TEST_F(DiskPagesTest, AFileSystemWithLargerPagesIsWrittenToAllTheSame) {
  calls_.direct_write_error = EINVAL;
  WriteAll();
  EXPECT_EQ(calls_.direct_bytes, 0);
}

TEST_F(DiskPagesTest, AnErrorOfTheDiskIsNoReasonToTryOtherwise) {
  calls_.direct_write_error = EIO;
  std::string memory(2 * kPage, 'x');
  const size_t before = kPage - reinterpret_cast<uintptr_t>(memory.data()) % kPage;
  ASSERT_OK_AND_ASSIGN(Disk::File file, disk_.Create(path_));
  EXPECT_THAT(file.WriteAt(0, absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(memory.data()) + before, kPage)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("write failed: Input/output error")));
  EXPECT_EQ(calls_.cached_bytes, 0);
}

TEST_F(DiskTest, FreeBytesAreThoseOfTheFileSystem) {
  ASSERT_OK_AND_ASSIGN(const int64_t free_bytes, disk_.FreeBytes(root_.path()));
  EXPECT_GT(free_bytes, 0);
  EXPECT_THAT(disk_.FreeBytes(Path("none")).status(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("statvfs")));
}

}  // namespace
}  // namespace paramshard::server
