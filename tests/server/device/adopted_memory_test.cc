// Memory that one process allocates and the next one adopts, and descriptors that are none of it.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/device/memory.h"
#include "tests/support/process_counts.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kBytes = 64 * 1024;

wire::FileDescriptor Copy(int fd) { return wire::FileDescriptor(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

// Memory as kKept is made, but for what a test wants to be wrong with it.
struct Recipe {
  int64_t size_bytes = kBytes;
  bool reserved = true;
  mode_t mode = 0600;
  int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
};

wire::FileDescriptor Make(const Recipe& recipe) {
  wire::FileDescriptor fd(memfd_create("adopted-memory-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), recipe.size_bytes), 0);
  EXPECT_EQ(recipe.reserved ? posix_fallocate(fd.get(), 0, recipe.size_bytes) : 0, 0);
  EXPECT_EQ(fchmod(fd.get(), recipe.mode), 0);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, recipe.seals), 0);
  return fd;
}

absl::Status Adopted(wire::FileDescriptor fd) {
  return Memory::Adopt("m:rank-0/master", kBytes, std::move(fd)).status();
}

auto IsLost(const std::string& what) {
  return StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("m:rank-0/master"), HasSubstr(what)));
}

TEST(AdoptedMemoryTest, ItHoldsWhatWasLeftInIt) {
  wire::FileDescriptor kept;
  {
    ASSERT_OK_AND_ASSIGN(const Memory memory, Memory::Allocate("test", kBytes, Sharing::kKept));
    std::fill_n(memory.data(), kBytes, 7);
    kept = Copy(memory.fd());
  }
  ASSERT_OK_AND_ASSIGN(const Memory memory, Memory::Adopt("m", kBytes, Copy(kept.get())));
  EXPECT_EQ(memory.size_bytes(), kBytes);
  EXPECT_EQ(std::count(memory.data(), memory.data() + kBytes, 7), kBytes);
  memory.data()[9] = 8;
  ASSERT_OK_AND_ASSIGN(const Memory again, Memory::Adopt("m", kBytes, std::move(kept)));
  EXPECT_EQ(again.data()[9], 8);
}

TEST(AdoptedMemoryTest, ItIsOfThisUserAloneAndInNoCoreDump) {
  ASSERT_OK_AND_ASSIGN(const Memory memory, Memory::Allocate("dump-test", kBytes, Sharing::kKept));
  ASSERT_OK_AND_ASSIGN(const Memory adopted, Memory::Adopt("m", kBytes, Copy(memory.fd())));
  struct stat info {};
  ASSERT_EQ(fstat(memory.fd(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  // Each mapping has a line of flags: madvise sets "dd".
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  int undumped = 0;
  for (bool ours = false; std::getline(maps, line);) {
    if (absl::StrContains(line, "-")) ours = absl::StrContains(line, "memfd:dump-test");
    if (ours && absl::StartsWith(line, "VmFlags:") && absl::StrContains(line, " dd")) ++undumped;
  }
  EXPECT_EQ(undumped, 2);
}

TEST(AdoptedMemoryTest, WhatIsMadeLikeItIsTaken) { EXPECT_OK(Adopted(Make({}))); }

TEST(AdoptedMemoryTest, AnotherSizeIsRefused) {
  for (const int64_t size_bytes : {int64_t{0}, kBytes - 1, kBytes + 1, 2 * kBytes}) {
    EXPECT_THAT(Adopted(Make({.size_bytes = size_bytes, .reserved = size_bytes > 0})),
                IsLost(absl::StrCat("got ", size_bytes)));
  }
}

TEST(AdoptedMemoryTest, MemoryThatSomebodyMayCutIsRefused) {
  for (const int seals : {0, F_SEAL_SHRINK | F_SEAL_GROW, F_SEAL_GROW | F_SEAL_SEAL, F_SEAL_SHRINK | F_SEAL_SEAL}) {
    EXPECT_THAT(Adopted(Make({.seals = seals})), IsLost("sealed"));
  }
}

TEST(AdoptedMemoryTest, MemoryThatNobodyMayWriteIsRefused) {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  EXPECT_THAT(Adopted(Make({.seals = kSeals | F_SEAL_WRITE})), IsLost("not against writing"));
  ASSERT_OK_AND_ASSIGN(const Memory planes, Memory::Allocate("test", kBytes, Sharing::kReadOnly));
  ASSERT_EQ(fchmod(planes.fd(), 0600), 0);
  EXPECT_THAT(Adopted(Copy(planes.fd())), IsLost("not against writing"));
}

TEST(AdoptedMemoryTest, MemoryThatOthersMayOpenIsRefused) {
  for (const mode_t mode : {0700, 0640, 0606, 04600, 0400}) EXPECT_THAT(Adopted(Make({.mode = mode})), IsLost("alone"));
}

TEST(AdoptedMemoryTest, MemoryWhosePagesWereGivenBackIsRefused) {
  EXPECT_THAT(Adopted(Make({.reserved = false})), IsLost("pages"));
  ASSERT_OK_AND_ASSIGN(Memory memory, Memory::Allocate("test", kBytes, Sharing::kKept));
  ASSERT_EQ(fallocate(memory.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 4096), 0);
  EXPECT_THAT(Adopted(Copy(memory.fd())), IsLost("pages"));
}

TEST(AdoptedMemoryTest, WhatIsNoMemoryIsRefused) {
  EXPECT_THAT(Adopted(wire::FileDescriptor()), IsLost("something else"));
  EXPECT_THAT(Adopted(wire::FileDescriptor(open("/dev/zero", O_RDWR | O_CLOEXEC))), IsLost("something else"));
  EXPECT_THAT(Adopted(wire::FileDescriptor(open("/", O_RDONLY | O_CLOEXEC))), IsLost("something else"));
  const std::string path = testing::TempDir() + "/adopted_memory_test";
  wire::FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  ASSERT_EQ(unlink(path.c_str()), 0);
  ASSERT_EQ(posix_fallocate(file.get(), 0, kBytes), 0);
  EXPECT_THAT(Adopted(std::move(file)), StatusIs(absl::StatusCode::kDataLoss));
}

TEST(AdoptedMemoryTest, ADescriptorThatOnlyReadsIsRefused) {
  const wire::FileDescriptor memory = Make({});
  wire::FileDescriptor reader(open(absl::StrCat("/proc/self/fd/", memory.get()).c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(reader.valid());
  EXPECT_THAT(Adopted(std::move(reader)), IsLost("not open for writing"));
}

TEST(AdoptedMemoryTest, WhatIsRefusedLeavesNoDescriptorBehind) {
  const int64_t before = OpenDescriptors();
  EXPECT_FALSE(Adopted(Make({.size_bytes = 1})).ok());
  EXPECT_OK(Adopted(Make({})));
  EXPECT_EQ(OpenDescriptors(), before);
}

}  // namespace
}  // namespace paramshard::server
