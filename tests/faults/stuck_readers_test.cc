// Readers that are stopped by SIGSTOP, and keep memory of a deleted model or of a killed server: each is a process of its
// own beside a real daemon.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "client/reader.h"
#include "common/shared_memory/file_descriptor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "tests/faults/training.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"
#include "tests/support/status_matchers.h"

namespace paramshard::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr absl::Duration kTurn = absl::Milliseconds(50);  // of a reader that lets go in time

// Numbers of a reader's board.
enum : int { kCalls, kEnd };

// Which memory a stopped reader keeps.
enum class Left { kByDeletion, kByKill };

class StuckReadersTest : public testing::TestWithParam<Left> {
 protected:
  void Start(const std::string& flag) {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    log_end_ = wire::FileDescriptor(ends[0]);
    const wire::FileDescriptor writer(ends[1]);
    auto daemon = DaemonProcess::Start(Program(PARAMSHARDD), directory_.path(),
                                       {DeviceFlagOf(0), "--keeper=on", "--log-level=warning", flag}, kTimeout,
                                       {.standard_error = writer.get()});
    ASSERT_OK(daemon.status());
    daemon_.emplace(*std::move(daemon));
    for (const char* model : {"left", "other"}) {
      ASSERT_OK(ChildProcess::Run([&](Board&) {
                  return Train({.socket_dir = directory_.path(), .model = model, .commits = 1});
                }).Await());
    }
  }

  // A reader that makes calls again and again until it is told to end.
  ChildProcess Read(const std::string& model) const {
    return ChildProcess::Run([=, socket_dir = directory_.path()](Board& board) -> absl::Status {
      ASSIGN_OR_RETURN(const std::unique_ptr<Reader> reader,
                       Reader::Create({.model = model, .socket_dir = socket_dir, .name = "eval"}));
      RETURN_IF_ERROR(reader->Acquire().status());
      for (uint32_t calls = 1; board.numbers[kEnd] == 0; ++calls) {
        Reach(board, kCalls, calls);
        const absl::Status waited = reader->WaitNewer({.history_id = "none", .commit_number = 1}, kTurn).status();
        if (!waited.ok() && !absl::IsDeadlineExceeded(waited)) return waited;
        AwaitNumber(board, kEnd, 1, kTurn);
      }
      return absl::OkStatus();
    });
  }
  // A trainer that reads, too.
  ChildProcess TrainAndRead(const std::string& trained, const std::string& read) const {
    return ChildProcess::Run([=, socket_dir = directory_.path()](Board& board) -> absl::Status {
      ASSIGN_OR_RETURN(const std::unique_ptr<Reader> reader,
                       Reader::Create({.model = read, .socket_dir = socket_dir, .name = "eval"}));
      RETURN_IF_ERROR(reader->Acquire().status());
      ASSIGN_OR_RETURN(Client client, Client::Connect({.socket_dir = socket_dir}));
      ASSIGN_OR_RETURN(const Model model, client.OpenModel(SmallModel(trained)));
      Reach(board, kCalls, 1);
      AwaitNumber(board, kEnd, 1, kTimeout);
      return absl::OkStatus();
    });
  }
  static void Stop(ChildProcess& reader) {
    ASSERT_TRUE(reader.AwaitNumber(kCalls, 1));
    reader.Signal(SIGSTOP);
    ASSERT_TRUE(reader.AwaitStopped());
  }

  // Returns the server that answers, other than `before`.
  absl::StatusOr<pid_t> AwaitServer(pid_t before) const {
    for (const absl::Time deadline = absl::Now() + kTimeout; absl::Now() < deadline;) {
      const absl::StatusOr<std::string> version = Ctl("-o json version");
      if (!version.ok()) continue;
      const auto pid = static_cast<pid_t>(std::stol(nlohmann::json::parse(*version)["pid"].get<std::string>()));
      if (pid != before) return pid;
    }
    return absl::DeadlineExceededError("no server");
  }
  absl::StatusOr<std::string> Ctl(const std::string& words) const {
    return OutputOf(absl::StrCat(Program(PARAMSHARDCTL), " --socket-dir=", directory_.path(), " ", words, " 2>&1"));
  }
  // Makes the memory of readers of the model "left" one that nobody publishes.
  void Leave() {
    if (GetParam() == Left::kByDeletion) {
      ASSERT_OK(Ctl("delete left").status());
      return;
    }
    ASSERT_OK_AND_ASSIGN(const pid_t server, AwaitServer(0));
    kill(server, SIGKILL);
    ASSERT_OK(AwaitServer(server).status());
  }
  static std::string Memory() {
    return GetParam() == Left::kByDeletion ? "memory of a deleted model" : "memory of a server that has ended";
  }
  // Returns the line of the daemon's log that has the text.
  std::string AwaitLine(const std::string& text) {
    const absl::Time deadline = absl::Now() + kTimeout;
    std::string line;
    while (absl::Now() < deadline) {
      pollfd log{.fd = log_end_.get(), .events = POLLIN, .revents = 0};
      char c;
      if (poll(&log, 1, 1000) != 1 || read(log_end_.get(), &c, 1) != 1) continue;
      log_.push_back(c);
      if (c != '\n') {
        line.push_back(c);
      } else if (absl::StrContains(line, text)) {
        return line;
      } else {
        line.clear();
      }
    }
    return absl::StrCat("no line with ", text, " in: ", log_);
  }
  // Readers that let go in time, or are of another model, are as before.
  static void ExpectUntouched(ChildProcess& reader) {
    EXPECT_TRUE(reader.AwaitNumber(kCalls, reader.board().numbers[kCalls] + 3)) << "it makes no calls";
    Reach(reader.board(), kEnd, 1);
    EXPECT_OK(reader.Await());
  }

  const TemporaryDirectory directory_;
  wire::FileDescriptor log_end_;
  std::string log_;
  std::optional<DaemonProcess> daemon_;
};

TEST_P(StuckReadersTest, AreNamedAndGoOn) {
  ASSERT_NO_FATAL_FAILURE(Start("--end-stuck-readers=off"));
  ChildProcess stuck = Read("left"), prompt = Read("left"), other = Read("other");
  ASSERT_TRUE(prompt.AwaitNumber(kCalls, 1) && other.AwaitNumber(kCalls, 1));
  ASSERT_NO_FATAL_FAILURE(Stop(stuck));
  ASSERT_NO_FATAL_FAILURE(Leave());
  const char* const listed = GetParam() == Left::kByDeletion ? "left (deleted)" : "left (earlier server)";
  EXPECT_THAT(Ctl("readers"), IsOkAndHolds(HasSubstr(listed)));
  EXPECT_THAT(AwaitLine("reader still holds"),
              AllOf(HasSubstr(absl::StrCat("reader still holds ", Memory(), " model=left reader=eval pid=", stuck.pid(),
                                           " bytes=")),
                    HasSubstr("not_killed=\"--end-stuck-readers is off\"")));
  EXPECT_THAT(log_, Not(HasSubstr(absl::StrCat("pid=", prompt.pid()))));
  ExpectUntouched(prompt);
  ExpectUntouched(other);
  stuck.Signal(SIGCONT);
  ExpectUntouched(stuck);
  EXPECT_THAT(Ctl("readers"), IsOkAndHolds(Not(HasSubstr(listed))));
}

TEST_P(StuckReadersTest, AreKilledIfThatIsAskedFor) {
  ASSERT_NO_FATAL_FAILURE(Start("--end-stuck-readers=on"));
  ChildProcess stuck = Read("left"), prompt = Read("left"), other = Read("other");
  ASSERT_TRUE(prompt.AwaitNumber(kCalls, 1) && other.AwaitNumber(kCalls, 1));
  ASSERT_NO_FATAL_FAILURE(Stop(stuck));
  ASSERT_NO_FATAL_FAILURE(Leave());
  EXPECT_THAT(AwaitLine("a reader that held"),
              HasSubstr(absl::StrCat("killed a reader that held ", Memory(),
                                     " model=left reader=eval pid=", stuck.pid(), " bytes=")));
  EXPECT_THAT(stuck.Await(), StatusIs(absl::StatusCode::kUnknown, HasSubstr("9")));
  EXPECT_THAT(Ctl("metrics"), IsOkAndHolds(HasSubstr("paramshard_readers_ended_total 1\n")));
  ExpectUntouched(prompt);
  ExpectUntouched(other);
}

TEST_P(StuckReadersTest, ATrainerIsNamedOnly) {
  ASSERT_NO_FATAL_FAILURE(Start("--end-stuck-readers=on"));
  ChildProcess trainer = TrainAndRead("other", "left");
  ASSERT_NO_FATAL_FAILURE(Stop(trainer));
  ASSERT_NO_FATAL_FAILURE(Leave());
  EXPECT_THAT(AwaitLine("reader still holds"), AllOf(HasSubstr(absl::StrCat("pid=", trainer.pid())),
                                                     HasSubstr("not_killed=\"it trains, or has trained\"")));
  trainer.Signal(SIGCONT);
  Reach(trainer.board(), kEnd, 1);
  EXPECT_OK(trainer.Await());
}

// The server that follows a killed one is killed, too.
TEST_P(StuckReadersTest, AreKnownToServersAfterTheNext) {
  ASSERT_NO_FATAL_FAILURE(Start("--end-stuck-readers=on"));
  ChildProcess stuck = Read("left");
  ASSERT_NO_FATAL_FAILURE(Stop(stuck));
  ASSERT_NO_FATAL_FAILURE(Leave());
  ASSERT_OK_AND_ASSIGN(const pid_t server, AwaitServer(0));
  kill(server, SIGKILL);
  EXPECT_THAT(AwaitLine("a reader that held"),
              HasSubstr(absl::StrCat("memory of a server that has ended model=left reader=eval pid=", stuck.pid())));
  EXPECT_THAT(stuck.Await(), StatusIs(absl::StatusCode::kUnknown));
}

INSTANTIATE_TEST_SUITE_P(Left, StuckReadersTest, testing::Values(Left::kByDeletion, Left::kByKill),
                         [](const auto& info) { return info.param == Left::kByDeletion ? "ByDeletion" : "ByKill"; });

}  // namespace
}  // namespace paramshard::test
