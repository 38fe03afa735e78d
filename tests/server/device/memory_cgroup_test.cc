#include "server/device/memory_cgroup.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/device/memory.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::server {
namespace {

using ::testing::Optional;

// A tree of files as the kernel shows them.
class MemoryCgroupTest : public testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file(path);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  // Below `point`, for version 2.
  void WriteTwo(const std::string& group, const std::string& max, int64_t current, int64_t inactive_file) {
    const std::string folder = absl::StrCat(root_, "/two", group);
    Write(folder + "/memory.max", max + "\n");
    Write(folder + "/memory.current", absl::StrCat(current, "\n"));
    Write(folder + "/memory.stat",
          absl::StrCat("anon 1\nfile 5\ninactive_anon 9\ninactive_file ", inactive_file, "\nactive_file 3\n"));
  }
  void WriteOne(const std::string& group, const std::string& limit, int64_t usage, int64_t inactive_file,
                const std::string& more = "") {
    const std::string folder = absl::StrCat(root_, "/one", group);
    Write(folder + "/memory.limit_in_bytes", limit + "\n");
    Write(folder + "/memory.usage_in_bytes", absl::StrCat(usage, "\n"));
    Write(folder + "/memory.stat",
          absl::StrCat("inactive_file 2\n", more, "total_inactive_file ", inactive_file, "\n"));
  }

  std::optional<int64_t> Left(const std::string& cgroup, const std::string& mountinfo) {
    Write(root_ + "/cgroup", cgroup);
    Write(root_ + "/mountinfo", absl::StrReplaceAll(mountinfo, {{"$", root_}}));
    return BytesLeftByCgroups(root_ + "/cgroup", root_ + "/mountinfo");
  }

  const test::TemporaryDirectory directory_;
  const std::string root_ = directory_.path();
  const std::string two_ = "30 24 0:26 / $/two rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
  const std::string one_ = "35 31 0:32 / $/one rw,relatime - cgroup cgroup rw,memory\n";
  const std::string others_ =
      "22 27 0:21 / /proc rw,relatime - proc proc rw\n32 31 0:29 / $/cpu rw - cgroup cgroup rw,cpu,cpuacct\n";
};

TEST_F(MemoryCgroupTest, TheTightestGroupUpToTheRootOfVersionTwo) {
  WriteTwo("/a/b/c", "max", 100, 0);
  WriteTwo("/a/b", "1000", 300, 50);
  WriteTwo("/a", "5000", 4600, 100);
  EXPECT_THAT(Left("0::/a/b/c\n", others_ + two_), Optional(500));
  WriteTwo("/a/b", "700", 300, 50);
  EXPECT_THAT(Left("0::/a/b/c\n", two_), Optional(450));
  WriteTwo("/a/b/c", "120", 100, 0);
  EXPECT_THAT(Left("0::/a/b/c\n", two_), Optional(20));
}

TEST_F(MemoryCgroupTest, TheTightestGroupUpToTheRootOfVersionOne) {
  WriteOne("/a/b", "9223372036854771712", 100, 0);
  WriteOne("/a", "1000", 400, 100);
  WriteOne("", "9223372036854771712", 1 << 30, 0);
  EXPECT_THAT(Left("9:name=systemd:/\n4:memory:/a/b\n1:cpu:/a\n0::/\n", others_ + one_), Optional(700));
  WriteOne("/a/b", "200", 100, 30);
  EXPECT_THAT(Left("4:cpuset,memory:/a/b\n", one_), Optional(130));
}

TEST_F(MemoryCgroupTest, NoLimitIsNone) {
  WriteTwo("/a", "max", 100, 0);
  WriteOne("/a", "9223372036854775807", 0, 0);
  EXPECT_EQ(Left("0::/a\n4:memory:/a\n", two_ + one_), std::nullopt);
  WriteOne("/a", "18446744073709551615", 0, 0);
  EXPECT_EQ(Left("4:memory:/a\n", one_), std::nullopt);
  // A number this large is a limit that nothing reaches.
  WriteOne("/a", "9223372036854771712", 712, 0);
  EXPECT_THAT(Left("4:memory:/a\n", one_), Optional(9223372036854771000));
}

TEST_F(MemoryCgroupTest, AThrottlingLimitCountsAsALimit) {
  WriteTwo("/a", "1000", 100, 0);
  Write(root_ + "/two/a/memory.high", "300\n");
  EXPECT_THAT(Left("0::/a\n", two_), Optional(200));
}

// Version 1 has the memory, and version 2 nothing but names.
TEST_F(MemoryCgroupTest, AHybridOfBothVersions) {
  WriteOne("/service", "800", 300, 0);
  std::filesystem::create_directories(root_ + "/two/service");
  EXPECT_THAT(Left("4:memory:/service\n0::/service\n", two_ + one_ + others_), Optional(500));
  // Limits of version 2 count too.
  WriteTwo("/service", "1000", 900, 0);
  EXPECT_THAT(Left("4:memory:/service\n0::/service\n", two_ + one_ + others_), Optional(100));
}

// The namespace of a container: its own group is the root, and is mounted as such.
TEST_F(MemoryCgroupTest, TheRootOfANamespaceHasALimit) {
  WriteTwo("", "1000", 100, 10);
  EXPECT_THAT(Left("0::/\n", two_), Optional(910));
  WriteTwo("/inner", "max", 50, 0);
  EXPECT_THAT(Left("0::/inner\n", two_), Optional(910));
}

// Without a namespace the container's group has its long name, and is mounted where the root would be.
TEST_F(MemoryCgroupTest, AMountOfAGroupBelowTheRoot) {
  WriteOne("", "1000", 100, 0);
  WriteOne("/sub", "500", 100, 0);
  const std::string mount = "35 31 0:32 /docker/12ab $/one ro,relatime master:15 - cgroup memory ro,seclabel,memory\n";
  EXPECT_THAT(Left("4:memory:/docker/12ab\n", mount), Optional(900));
  EXPECT_THAT(Left("4:memory:/docker/12ab/sub\n", mount), Optional(400));
  // Another container's group, whose name begins alike.
  EXPECT_EQ(Left("4:memory:/docker/12abc\n", mount), std::nullopt);
  EXPECT_EQ(Left("4:memory:/elsewhere\n", mount), std::nullopt);
}

TEST_F(MemoryCgroupTest, AMountFromOutsideOfTheNamespace) {
  WriteTwo("/pods/pod1", "1000", 100, 0);
  WriteTwo("/pods/pod1/own", "max", 100, 0);
  WriteTwo("/pods/pod2", "500", 100, 0);
  WriteTwo("/pods/pod2/own", "50", 10, 0);
  Write(root_ + "/two/pods/pod2/own/cgroup.procs", "1\n");
  Write(root_ + "/two/pods/pod1/own/cgroup.procs", absl::StrCat("1\n", getpid(), "\n"));
  EXPECT_THAT(Left("0::/own\n", "30 24 0:26 /../.. $/two rw - cgroup2 cgroup2 rw\n"), Optional(900));
  // The group of a process that was moved out of the namespace is not mounted.
  EXPECT_EQ(Left("0::/../pod1\n", two_), std::nullopt);
}

TEST_F(MemoryCgroupTest, SpacesInMountPointsAreEscaped) {
  const std::string point = root_ + "/a b";
  Write(point + "/memory.max", "300\n");
  EXPECT_THAT(Left("0::/\n", "30 24 0:26 / $/a\\040b rw - cgroup2 cgroup2 rw\n"), Optional(300));
}

TEST_F(MemoryCgroupTest, GroupsThatDoNotCountWhatIsBelowThemAreNotAsked) {
  WriteOne("/a/b", "1000", 100, 0);
  WriteOne("/a", "50", 10, 0);
  Write(root_ + "/one/a/memory.use_hierarchy", "0\n");
  EXPECT_THAT(Left("4:memory:/a/b\n", one_), Optional(900));
  Write(root_ + "/one/a/memory.use_hierarchy", "1\n");
  EXPECT_THAT(Left("4:memory:/a/b\n", one_), Optional(40));
}

TEST_F(MemoryCgroupTest, AGroupAboveTheMountIsKnownByItsLimit) {
  WriteOne("", "9223372036854771712", 100, 20, "hierarchical_memory_limit 600\n");
  EXPECT_THAT(Left("4:memory:/docker/1\n", "35 31 0:32 /docker/1 $/one rw - cgroup cgroup rw,memory\n"), Optional(520));
}

TEST_F(MemoryCgroupTest, AGroupOverItsLimitLeavesNothing) {
  WriteTwo("/a", "100", 900, 10);
  EXPECT_THAT(Left("0::/a\n", two_), Optional(0));
  WriteTwo("/a", "0", 0, 0);
  EXPECT_THAT(Left("0::/a\n", two_), Optional(0));
  // Read at two moments, the part may be larger than the whole.
  WriteTwo("/a", "100", 10, 50);
  EXPECT_THAT(Left("0::/a\n", two_), Optional(100));
}

TEST_F(MemoryCgroupTest, FilesThatAreMissingLimitNothing) {
  EXPECT_EQ(BytesLeftByCgroups(root_ + "/none", root_ + "/none"), std::nullopt);
  EXPECT_EQ(Left("0::/a\n", two_), std::nullopt);
  EXPECT_EQ(Left("4:memory:/a\n", one_), std::nullopt);
  EXPECT_EQ(Left("", two_), std::nullopt);
  Write(root_ + "/two/a/memory.max", "500\n");
  EXPECT_THAT(Left("0::/a\n", two_), Optional(500));
  Write(root_ + "/two/a/memory.current", "100\n");
  EXPECT_THAT(Left("0::/a\n", two_), Optional(400));
  Write(root_ + "/two/a/memory.max", "");
  EXPECT_EQ(Left("0::/a\n", two_), std::nullopt);
}

TEST_F(MemoryCgroupTest, LinesOfNoMeaningArePassedOver) {
  WriteTwo("/a:b", "500", 100, 0);
  EXPECT_THAT(Left("\nnonsense\n1:2\n0::/a:b\n", "\n- - -\n1 2 3 4 5 6 - cgroup2\n" + two_), Optional(400));
}

TEST_F(MemoryCgroupTest, WhatIsAvailableIsTheLesser) {
  Write(root_ + "/meminfo", "MemTotal: 2000 kB\nMemAvailable: 1000 kB\n");
  WriteTwo("/a", "900000", 0, 0);
  Write(root_ + "/cgroup", "0::/a\n");
  Write(root_ + "/mountinfo", absl::StrReplaceAll(two_, {{"$", root_}}));
  const MemoryFiles files{
      .meminfo = root_ + "/meminfo", .cgroup = root_ + "/cgroup", .mountinfo = root_ + "/mountinfo"};
  EXPECT_EQ(AvailableHostBytes(files), 900000);
  WriteTwo("/a", "2000000000", 0, 0);
  EXPECT_EQ(AvailableHostBytes(files), 1024000);
}

constexpr int64_t kLimit = int64_t{256} << 20;

// A group of the kernel's with a limit of kLimit, or why there is none.
class RealCgroupTest : public testing::Test {
 protected:
  RealCgroupTest() {
    for (const auto& [hierarchy, limit] : std::map<std::string, std::string>{
             {"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}, {"/sys/fs/cgroup", "memory.max"}}) {
      if (!std::filesystem::exists(hierarchy + "/cgroup.procs")) continue;
      group_ = absl::StrCat(hierarchy, "/paramshard-test-", getpid());
      std::error_code error;
      std::filesystem::create_directory(group_, error);
      why_ = absl::StrCat(group_, ": ", error.message());
      if (error) continue;
      if (std::filesystem::exists(group_ + "/" + limit)) {
        std::ofstream(group_ + "/" + limit) << kLimit;
        made_ = true;
        return;
      }
      why_ = absl::StrCat(hierarchy, ": no controller of memory");
      rmdir(group_.c_str());
    }
  }
  ~RealCgroupTest() override {
    if (made_) rmdir(group_.c_str());
  }

  bool made_ = false;
  std::string group_, why_ = "no hierarchy of control groups is mounted below /sys/fs/cgroup";
};

TEST_F(RealCgroupTest, MemoryBeyondTheLimitIsRefusedAndNobodyIsKilled) {
  if (!made_) GTEST_SKIP() << "no control group can be made here: " << why_;
  const pid_t child = fork();
  if (child == 0) {
    std::ofstream(group_ + "/cgroup.procs") << getpid() << std::flush;
    if (AvailableHostBytes() > kLimit) _exit(2);
    for (const Sharing sharing : {Sharing::kPrivate, Sharing::kReadOnly}) {
      if (!absl::IsResourceExhausted(Memory::Allocate("m", 2 * kLimit, sharing).status())) _exit(3);
    }
    const absl::StatusOr<Memory> fits = Memory::Allocate("m", kLimit / 2, Sharing::kReadWrite);
    if (!fits.ok()) _exit(4);
    if (AvailableHostBytes() > kLimit / 2) _exit(5);
    _exit(absl::IsResourceExhausted(Memory::Allocate("m", kLimit / 2 + 1, Sharing::kPrivate).status()) ? 0 : 6);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child) << strerror(errno);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace paramshard::server
