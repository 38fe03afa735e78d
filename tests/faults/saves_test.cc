// A real daemon that trains, saves and stops: what it leaves is checked by the program that people use.

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/faults/training.h"
#include "tests/status_matchers.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::test {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60);

class SavesTest : public testing::Test {
 protected:
  void Start(std::vector<std::string> more) {
    std::vector<std::string> flags = DeviceFlags(ranks_);
    flags.push_back("--save-dir=" + saves_.path());
    flags.insert(flags.end(), more.begin(), more.end());
    auto daemon = DaemonProcess::Start(Program(PARAMSHARDD), sockets_.path(), flags);
    ASSERT_OK(daemon.status());
    daemon_.emplace(*std::move(daemon));
  }
  void TrainTo(int64_t commits) {
    std::vector<ChildProcess> trainers;
    for (int rank = 0; rank < ranks_; ++rank) {
      trainers.push_back(ChildProcess::Run([this, rank, commits](Board&) {
        return Train({.socket_dir = sockets_.path(), .model = "saved", .rank = rank, .commits = commits});
      }));
    }
    for (ChildProcess& trainer : trainers) EXPECT_OK(trainer.Await());
  }
  absl::StatusOr<std::string> Ctl(const std::string& arguments) {
    return OutputOf(absl::StrCat(Program(PARAMSHARDCTL), " ", arguments));
  }
  absl::StatusOr<std::string> CtlOfDaemon(const std::string& arguments) {
    return Ctl(absl::StrCat("--socket-dir=", sockets_.path(), " ", arguments));
  }
  void ExpectStopped() {
    daemon_->Signal(SIGTERM);
    EXPECT_THAT(daemon_->AwaitExit(kPatience), IsOkAndHolds(0));
  }

  const int ranks_ = DevicesUpTo(2);
  const TemporaryDirectory saves_;
  const TemporaryDirectory sockets_;
  std::optional<DaemonProcess> daemon_;
};

TEST_F(SavesTest, ASaveByCallIsACheckpointThatVerifies) {
  ASSERT_NO_FATAL_FAILURE(Start({"--save-on-drain=off"}));
  TrainTo(3);
  ASSERT_OK_AND_ASSIGN(const std::string text, CtlOfDaemon("-o json save saved --wait"));
  const nlohmann::json save = nlohmann::json::parse(text)["save"];
  EXPECT_EQ(save["state"], "SAVE_STATE_PUBLISHED") << text;
  EXPECT_EQ(save["step"], "3");
  EXPECT_OK(Ctl("checkpoint verify " + save["path"].get<std::string>()));
  EXPECT_THAT(CtlOfDaemon("saves"), IsOkAndHolds(HasSubstr("saved: 1 published, 0 abandoned")));
  ExpectStopped();
}

TEST_F(SavesTest, ADaemonThatStopsSavesWhatIsNotSaved) {
  ASSERT_NO_FATAL_FAILURE(Start({"--save-every=2"}));
  TrainTo(5);
  ExpectStopped();
  ASSERT_OK_AND_ASSIGN(const std::string listed, Ctl("checkpoint list " + saves_.path() + "/saved"));
  EXPECT_THAT(listed, HasSubstr("step-000000000005-"));
  const std::string latest = listed.substr(listed.find("step-000000000005-"), 26);
  EXPECT_OK(Ctl("checkpoint verify " + saves_.path() + "/saved/" + latest));
}

}  // namespace
}  // namespace paramshard::test
