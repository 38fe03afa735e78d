#include "server/keeper/server_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/process_counts.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::server {
namespace {

ServerProcess::Options Shell(const std::string& script) {
  ServerProcess::Options options{.command = {.program = "/bin/sh", .arguments = {"-c", script}}};
  sigemptyset(&options.blocked_signals);
  return options;
}

// How it ends, by itself.
std::string EndOf(ServerProcess& process) {
  pollfd polled{.fd = process.pidfd(), .events = POLLIN, .revents = 0};
  if (poll(&polled, 1, 30'000) != 1) return "it does not end";
  const std::optional<ServerEnd> end = process.Reap();
  return end.has_value() ? end->Description() : "it is not said how it ended";
}

TEST(ServerProcessTest, TheEndIsToldInWordsOnce) {
  ASSERT_OK_AND_ASSIGN(ServerProcess process, ServerProcess::Start(Shell("exit 3")));
  EXPECT_EQ(EndOf(process), "exit code 3");
  EXPECT_EQ(process.Reap(), std::nullopt);
  process.Signal(SIGKILL);
}

TEST(ServerProcessTest, ASignalThatEndsItIsNamed) {
  ASSERT_OK_AND_ASSIGN(ServerProcess process, ServerProcess::Start(Shell("exec sleep 600")));
  EXPECT_EQ(process.Reap(), std::nullopt);
  process.Signal(SIGKILL);
  EXPECT_EQ(EndOf(process), "signal 9 (Killed)");
}

TEST(ServerProcessTest, AProgramThatCannotBeExecutedIsToldByItsEnd) {
  ASSERT_OK_AND_ASSIGN(ServerProcess missing, ServerProcess::Start({.command = {.program = "/nowhere/server"}}));
  EXPECT_EQ(EndOf(missing), "exec failed: No such file or directory");
  ASSERT_OK_AND_ASSIGN(ServerProcess folder, ServerProcess::Start({.command = {.program = "/"}}));
  EXPECT_EQ(EndOf(folder), "exec failed: Permission denied");
}

// The path may lead to another file by then.
TEST(ServerProcessTest, TheFileThatIsGivenIsExecuted) {
  const wire::FileDescriptor shell(open("/bin/sh", O_PATH | O_CLOEXEC));
  ServerProcess::Options options = Shell("test \"$0\" = /nowhere/server && exit 7");
  options.command.program = "/nowhere/server";
  options.file = shell.get();
  ASSERT_OK_AND_ASSIGN(ServerProcess process, ServerProcess::Start(options));
  EXPECT_EQ(EndOf(process), "exit code 7");
}

TEST(ServerProcessTest, AScriptIsExecutedAtItsPath) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/script";
  std::ofstream(path) << "#!/bin/sh\nexit $1\n";
  ASSERT_EQ(chmod(path.c_str(), 0700), 0);
  const wire::FileDescriptor script(open(path.c_str(), O_PATH | O_CLOEXEC));
  ServerProcess::Options options{.command = {.program = path, .arguments = {"7"}}, .file = script.get()};
  ASSERT_OK_AND_ASSIGN(ServerProcess process, ServerProcess::Start(options));
  EXPECT_EQ(EndOf(process), "exit code 7");
}

// 127 may also be the program's own.
TEST(ServerProcessTest, AProgramThatExitsLikeAMissingOneIsNotMissing) {
  ASSERT_OK_AND_ASSIGN(ServerProcess process, ServerProcess::Start(Shell("exit 127")));
  EXPECT_EQ(EndOf(process), "exit code 127");
}

// Descriptors that this process itself was started with, divided by bars.
std::string InheritedDescriptors() {
  std::vector<int> inherited;
  for (int fd = 0; fd < 1024; ++fd) {
    const int flags = fcntl(fd, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) inherited.push_back(fd);
  }
  return absl::StrJoin(inherited, "|");
}

TEST(ServerProcessTest, ItHasTheSocketAndNothingElseOfTheKeeper) {
  const wire::FileDescriptor other(open("/dev/null", O_RDONLY | O_CLOEXEC));
  // The shell itself has a descriptor of that folder for as long as it lists it.
  const std::string script = absl::StrCat(
      "seen=0; for fd in /proc/$$/fd/*; do test -L $fd || continue; case ${fd##*/} in ", InheritedDescriptors(),
      ") ;; $PARAMSHARD_KEEPER_SOCKET) test -S $fd && seen=1 ;; *) exit 5 ;; esac; done; exit $seen");
  ASSERT_OK_AND_ASSIGN(ServerProcess process, ServerProcess::Start(Shell(script)));
  EXPECT_EQ(EndOf(process), "exit code 1");
}

TEST(ServerProcessTest, WhatIsLentIsThereUnderItsVariable) {
  const wire::FileDescriptor null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  ServerProcess::Options options = Shell("test /proc/$$/fd/$LENT -ef /dev/null && exit 7");
  options.lent = {{.variable = "LENT", .fd = null.get()}};
  ASSERT_OK_AND_ASSIGN(ServerProcess process, ServerProcess::Start(options));
  EXPECT_EQ(EndOf(process), "exit code 7");
  EXPECT_NE(fcntl(null.get(), F_GETFD) & FD_CLOEXEC, 0) << "the keeper's own stays closed to others";
}

TEST(ServerProcessTest, ItsScoreForTheOutOfMemoryKillerIsThatOfTheOptions) {
  ServerProcess::Options options = Shell("read score < /proc/$$/oom_score_adj; exit $((score - 700))");
  options.oom_score_adj = 742;
  ASSERT_OK_AND_ASSIGN(ServerProcess process, ServerProcess::Start(options));
  EXPECT_EQ(EndOf(process), "exit code 42");
}

TEST(ServerProcessTest, TheSocketIsClosedWithIt) {
  ASSERT_OK_AND_ASSIGN(ServerProcess process, ServerProcess::Start(Shell("exit 0")));
  const wire::FileDescriptor socket = process.TakeSocket();
  EndOf(process);
  pollfd polled{.fd = socket.get(), .events = 0, .revents = 0};
  ASSERT_EQ(poll(&polled, 1, 0), 1);
  EXPECT_NE(polled.revents & POLLHUP, 0);
}

TEST(ServerProcessTest, OneThatRunsIsKilledWithItsOwnerAndNothingIsLeftOpen) {
  const int64_t before = OpenDescriptors();
  pid_t pid = -1;
  {
    ASSERT_OK_AND_ASSIGN(ServerProcess process, ServerProcess::Start(Shell("exec sleep 600")));
    pid = process.pid();
  }
  EXPECT_EQ(kill(pid, 0), -1);
  EXPECT_EQ(OpenDescriptors(), before);
}

}  // namespace
}  // namespace paramshard::server
