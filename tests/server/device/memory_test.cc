#include "server/device/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/descriptor_limit.h"
#include "tests/support/process_counts.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kBytes = 64 * 1024;

Memory Allocate(Sharing sharing, int64_t size_bytes = kBytes) {
  absl::StatusOr<Memory> memory = Memory::Allocate("memory-test", size_bytes, sharing);
  EXPECT_OK(memory);
  return memory.ok() ? *std::move(memory) : Memory();
}

// The mapping that another process would get.
class Mapping {
 public:
  Mapping(const Memory& memory, int protection) : size_bytes_(memory.size_bytes()) {
    void* data = mmap(nullptr, size_bytes_, protection, MAP_SHARED, memory.fd(), 0);
    error_ = data == MAP_FAILED ? errno : 0;
    data_ = data == MAP_FAILED ? nullptr : static_cast<uint8_t*>(data);
  }
  ~Mapping() {
    if (data_ != nullptr) munmap(data_, size_bytes_);
  }

  uint8_t* data() const { return data_; }
  int error() const { return error_; }

 private:
  const size_t size_bytes_;
  uint8_t* data_ = nullptr;
  int error_ = 0;
};

class SharingTest : public testing::TestWithParam<Sharing> {};

INSTANTIATE_TEST_SUITE_P(All, SharingTest,
                         testing::Values(Sharing::kPrivate, Sharing::kReadOnly, Sharing::kReadWrite, Sharing::kKept));

TEST_P(SharingTest, MemoryIsZeroedAndWritable) {
  const Memory memory = Allocate(GetParam());
  ASSERT_EQ(memory.size_bytes(), kBytes);
  EXPECT_EQ(std::count(memory.data(), memory.data() + kBytes, 0), kBytes);
  std::fill_n(memory.data(), kBytes, 0xab);
  EXPECT_EQ(memory.data()[kBytes - 1], 0xab);
  EXPECT_EQ(memory.fd() >= 0, GetParam() != Sharing::kPrivate);
}

TEST_P(SharingTest, NothingMayBeAskedFor) {
  const Memory memory = Allocate(GetParam(), 0);
  EXPECT_EQ(memory.data(), nullptr);
  EXPECT_EQ(memory.size_bytes(), 0);
}

// Refused before the machine is short of memory: the kernel would hand out pages of shared memory until it kills.
TEST_P(SharingTest, MoreThanTheMachineHasIsRefused) {
  const int64_t before = OpenDescriptors();
  for (int64_t size_bytes : {AvailableHostBytes() * 2, int64_t{1} << 50, INT64_MAX - 4095, INT64_MAX}) {
    EXPECT_THAT(Memory::Allocate("memory-test", size_bytes, GetParam()),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr(std::to_string(size_bytes))));
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_P(SharingTest, AMoveTakesTheMemoryAndLeavesNone) {
  const int64_t before = OpenDescriptors();
  {
    Memory first = Allocate(GetParam());
    uint8_t* const data = first.data();
    data[5] = 1;
    Memory second = std::move(first);
    EXPECT_EQ(second.data(), data);
    EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move)
    EXPECT_EQ(first.size_bytes(), 0);
    EXPECT_EQ(first.fd(), -1);

    Memory third = Allocate(GetParam(), 4096);
    third = std::move(second);
    EXPECT_EQ(third.data(), data);
    EXPECT_EQ(third.data()[5], 1);
    Memory& same = third;
    third = std::move(same);
    EXPECT_EQ(third.data(), data);
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(MemoryTest, OthersSeeWhatTheDaemonWrites) {
  const Memory memory = Allocate(Sharing::kReadOnly);
  const Mapping other(memory, PROT_READ);
  ASSERT_NE(other.data(), nullptr);
  memory.data()[1000] = 77;
  EXPECT_EQ(other.data()[1000], 77);
}

TEST(MemoryTest, ReadOnlyMemoryCannotBeMappedForWriting) {
  const Memory memory = Allocate(Sharing::kReadOnly);
  EXPECT_EQ(Mapping(memory, PROT_READ | PROT_WRITE).error(), EPERM);
  const Mapping reader(memory, PROT_READ);
  ASSERT_NE(reader.data(), nullptr);
  EXPECT_EQ(mprotect(reader.data(), kBytes, PROT_READ | PROT_WRITE), -1);
}

TEST(MemoryTest, ReadOnlyMemoryCannotBeWrittenThroughItsDescriptor) {
  const Memory memory = Allocate(Sharing::kReadOnly);
  EXPECT_EQ(pwrite(memory.fd(), "x", 1, 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(fallocate(memory.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
  EXPECT_EQ(memory.data()[0], 0);
}

TEST(MemoryTest, ReadWriteMemoryIsSharedBothWays) {
  const Memory memory = Allocate(Sharing::kReadWrite);
  const Mapping other(memory, PROT_READ | PROT_WRITE);
  ASSERT_NE(other.data(), nullptr);
  other.data()[3] = 9;
  EXPECT_EQ(memory.data()[3], 9);
}

TEST(MemoryTest, SharedMemoryKeepsItsSizeAndItsSeals) {
  for (Sharing sharing : {Sharing::kReadOnly, Sharing::kReadWrite, Sharing::kKept}) {
    const Memory memory = Allocate(sharing);
    for (off_t size_bytes : {off_t{0}, off_t{kBytes / 2}, off_t{2 * kBytes}}) {
      EXPECT_EQ(ftruncate(memory.fd(), size_bytes), -1);
      EXPECT_EQ(errno, EPERM);
    }
    EXPECT_EQ(fcntl(memory.fd(), F_ADD_SEALS, F_SEAL_WRITE), -1);
    struct stat info {};
    ASSERT_EQ(fstat(memory.fd(), &info), 0);
    EXPECT_EQ(info.st_size, kBytes);
  }
}

TEST(MemoryTest, DiscardGivesBackPagesThatOthersStillMap) {
  Memory memory = Allocate(Sharing::kReadWrite);
  const Mapping other(memory, PROT_READ | PROT_WRITE);
  ASSERT_NE(other.data(), nullptr);
  std::fill_n(other.data(), kBytes, 0xff);
  struct stat info {};
  ASSERT_EQ(fstat(memory.fd(), &info), 0);
  EXPECT_GT(info.st_blocks, 0);
  memory.Discard();
  ASSERT_EQ(fstat(memory.fd(), &info), 0);
  EXPECT_EQ(info.st_blocks, 0);
  EXPECT_EQ(info.st_size, kBytes);
  EXPECT_EQ(other.data()[100], 0);
}

TEST(MemoryTest, AvailableHostBytesIsAPlausibleNumber) {
  EXPECT_GT(AvailableHostBytes(), kBytes);
  EXPECT_LE(AvailableHostBytes(), static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE));
}

// Without it a model of any size would be allocated until the kernel kills somebody.
TEST(MemoryTest, TheGuardOutlivesAnUnreadableMeminfo) {
  const int64_t physical = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  for (const char* meminfo : {"/nowhere/meminfo", "/dev/null", "/proc/version"}) {
    EXPECT_GT(AvailableHostBytes({.meminfo = meminfo}), 0) << meminfo;
    EXPECT_LE(AvailableHostBytes({.meminfo = meminfo}), physical) << meminfo;
  }
  const DescriptorLimit limit(DescriptorLimit::NoneLeft());
  EXPECT_LE(AvailableHostBytes(), physical);
  EXPECT_THAT(Memory::Allocate("too large", physical * 2, Sharing::kPrivate),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("available")));
}

}  // namespace
}  // namespace paramshard::server
