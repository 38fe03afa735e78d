// Mirrors of a training, each with a reader beside it: all are daemons of this machine.

#include <csignal>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "client/reader.h"
#include "gmock/gmock.h"
#include "kernels/base/status_macros.h"
#include "tests/faults/mirrored_training.h"
#include "tests/support/status_matchers.h"

namespace paramshard::test {
namespace {

using ::testing::HasSubstr;

int Activate(const ReadMirror& mirror, int64_t commit) {
  return RunCtl({"--socket-dir=" + mirror.sockets()}, absl::StrCat("mirror activate m ", commit)).code;
}

// Reads so many versions, each newer than the one before.
absl::Status ReadVersions(ReadMirror& mirror, int versions) {
  int64_t commit = 0;
  for (int i = 0; i < versions; ++i) {
    ASSIGN_OR_RETURN(commit, mirror.Read(commit + 1));
  }
  return absl::OkStatus();
}

TEST(MirrorTest, AReaderBesideAMirrorReadsEveryByteOfItsVersions) {
  for (const int nodes : {1, 2}) {
    SCOPED_TRACE(absl::StrCat(nodes, " nodes"));
    MirroredTraining training(nodes);
    ASSERT_OK(training.AwaitReady());
    ReadMirror mirror(training);
    training.Train(/*commits=*/1'000'000);
    EXPECT_OK(ReadVersions(mirror, 30));
  }
}

TEST(MirrorTest, TheLastVersionArrives) {
  MirroredTraining training(2);
  ASSERT_OK(training.AwaitReady());
  ReadMirror mirror(training);
  training.TrainTo(100);
  EXPECT_THAT(mirror.Read(100), IsOkAndHolds(100));
}

TEST(MirrorTest, AMirrorThatIsKilledComesBack) {
  MirroredTraining training(2);
  ASSERT_OK(training.AwaitReady());
  ReadMirror mirror(training), other(training);
  training.Train(/*commits=*/1'000'000);
  ASSERT_OK(ReadVersions(mirror, 3));
  for (int i = 0; i < 3; ++i) {
    const int64_t before = training.commit();
    mirror.daemon().Signal(SIGKILL);
    ASSERT_OK(mirror.daemon().AwaitExit(kMirrorTimeout));
    // Neither the training nor another mirror waits for it.
    ASSERT_OK(other.Read(before + 10));
    mirror.Start();
    ASSERT_OK(mirror.Read(before + 10));
  }
}

TEST(MirrorTest, AMirrorThatStandsStillIsCutOff) {
  MirroredTraining training(1);
  ASSERT_OK(training.AwaitReady());
  ReadMirror mirror(training), other(training);
  training.Train(/*commits=*/1'000'000);
  ASSERT_OK(ReadVersions(mirror, 3));
  const int64_t before = training.commit();
  mirror.daemon().Pause();
  ASSERT_OK(other.Read(before + 100));
  mirror.daemon().Signal(SIGCONT);
  EXPECT_OK(mirror.Read(before + 100));
}

// Its keeper starts the next server, and the training goes on.
TEST(MirrorTest, AMirrorOutlivesAnOwner) {
  MirroredTraining training({.nodes = 2, .flags = {"--keeper=on"}});
  ASSERT_OK(training.AwaitReady());
  ReadMirror mirror(training);
  training.Train(/*commits=*/1'000'000);
  ASSERT_OK(ReadVersions(mirror, 3));
  for (int node = training.nodes() - 1; node >= 0; --node) {
    SCOPED_TRACE(absl::StrCat("node ", node));
    const int64_t before = training.commit();
    ASSERT_OK_AND_ASSIGN(const pid_t server, ServerOf(training.sockets(node)));
    kill(server, SIGKILL);
    // The version of the mirror can be read all the while.
    ASSERT_OK(mirror.Read(1));
    EXPECT_OK(mirror.Read(before + 20));
  }
}

TEST(MirrorTest, MirrorsChangeOverByOrder) {
  MirroredTraining training(1);
  ASSERT_OK(training.AwaitReady());
  const std::vector<std::string> manual = {"--mirror-activate=manual"};
  ReadMirror mirror(training, manual);
  ASSERT_OK(mirror.daemon().AwaitReady());
  training.TrainTo(20);
  // It may have staged an earlier version, and keeps that until it is told of a later one.
  ASSERT_OK_AND_ASSIGN(const int64_t first, mirror.AwaitStaged(0));
  EXPECT_EQ(Activate(mirror, 20) == 0, first == 20);
  if (first < 20) {
    ASSERT_OK(mirror.AwaitStaged(20));
    EXPECT_EQ(Activate(mirror, 20), 0);
  }
  EXPECT_THAT(mirror.Read(0), IsOkAndHolds(20));
  // It is active already; another one is left behind.
  EXPECT_EQ(Activate(mirror, 20), 0);
  EXPECT_NE(Activate(mirror, 19), 0);
  EXPECT_THAT(mirror.Read(0), IsOkAndHolds(20));
}

TEST(MirrorTest, ReadersHearOfADeletedModelAndReadTheNextOne) {
  MirroredTraining training(1);
  ASSERT_OK(training.AwaitReady());
  ReadMirror mirror(training);
  training.TrainTo(5);
  ASSERT_OK(mirror.Read(5));
  ASSERT_OK_AND_ASSIGN(Client client, Client::Connect({.socket_dir = training.sockets(0)}));
  ASSERT_OK(client.DeleteModel("m"));
  ASSERT_OK_AND_ASSIGN(const auto reader, Reader::Create({.model = "m", .socket_dir = mirror.sockets()}));
  const absl::Time deadline = absl::Now() + kMirrorTimeout;
  absl::Status status;
  // The mirror hears of it when it asks.
  while (!absl::StrContains(status.message(), "not found") && absl::Now() < deadline) {
    status = reader->Acquire({.timeout = absl::Milliseconds(100)}).status();
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("not found")));
  training.TrainTo(3);
  EXPECT_THAT(mirror.Read(3), IsOkAndHolds(3));
}

TEST(MirrorTest, AMirrorTrainsNothing) {
  MirroredTraining training(1);
  ASSERT_OK(training.AwaitReady());
  ReadMirror mirror(training);
  ASSERT_OK(mirror.daemon().AwaitReady());
  ASSERT_OK_AND_ASSIGN(Client client, Client::Connect({.socket_dir = mirror.sockets()}));
  EXPECT_THAT(client.OpenModel(KnownModel(1)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("this daemon is a mirror of 127.0.0.1:")));
  training.TrainTo(3);
  ASSERT_OK(mirror.Read(3));
  ASSERT_OK_AND_ASSIGN(const nlohmann::json models, Ctl(mirror.sockets(), "models"));
  ASSERT_EQ(models["models"].size(), 1) << models;
  const nlohmann::json& model = models["models"][0];
  EXPECT_EQ(model["name"], "m");
  EXPECT_EQ(model["parameterCount"], "4");
  EXPECT_EQ(model["commitNumber"], "3");
  EXPECT_THAT(model["whyNoEpoch"].get<std::string>(), HasSubstr("mirror list"));
}

TEST(MirrorTest, AMirrorThatReachesNobodySaysWhyItHasNoModels) {
  ReadMirror mirror(FreePort());
  ASSERT_OK(mirror.AwaitError("Connection refused"));
  const Ended models = RunCtl({"--socket-dir=" + mirror.sockets()}, "models");
  EXPECT_EQ(models.code, 0);
  EXPECT_THAT(models.output, HasSubstr("UNAVAILABLE: node 0 at 127.0.0.1:"));
}

}  // namespace
}  // namespace paramshard::test
