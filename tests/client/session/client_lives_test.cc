// The client library when its own process forks, and when its daemon dies and comes back.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "gmock/gmock.h"
#include "kernels/base/status_macros.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/status_matchers.h"

namespace paramshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Units "a" and "b", each of one matrix "a.w".
ModelSpec TwoMatrices(const std::string& name) {
  ModelSpec spec;
  spec.name = name;
  for (const char* unit : {"a", "b"}) {
    ParameterSpec weight;
    weight.name = absl::StrCat(unit, ".w");
    weight.shape = {48, 32};
    weight.encoding.format = Format::kMXFP8;
    weight.initial_value = {Initializer::kNormal, 0.0f, 0.1f};
    spec.units.push_back({.name = unit, .parameters = {weight}});
  }
  return spec;
}

class ClientLivesTest : public testing::Test {
 protected:
  void StartDaemon() {
    daemon_.reset();
    absl::StatusOr<test::DaemonProcess> daemon =
        test::DaemonProcess::Start(PARAMSHARDD, directory_.path(), {"--device=cpu:0"});
    ASSERT_OK(daemon);
    daemon_.emplace(*std::move(daemon));
  }

  void KillDaemon() {
    daemon_->Signal(SIGKILL);
    ASSERT_OK(daemon_->AwaitExit(absl::Seconds(60)));
  }

  absl::StatusOr<Client> Connect() {
    return Client::Connect({.rank = 0,
                            .socket_dir = directory_.path(),
                            .attach_timeout = absl::Seconds(20),
                            .restart_timeout = absl::ZeroDuration()});
  }

  // Starts the daemon when it waits for one. `waits` counts how often it has said so.
  Client::Options Patient(int* waits) {
    return {.rank = 0,
            .socket_dir = directory_.path(),
            .attach_timeout = absl::Seconds(60),
            .on_wait = [this, waits](absl::string_view text) {
              EXPECT_THAT(text, HasSubstr(directory_.path()));
              ++*waits;
              StartDaemon();
            }};
  }

  const test::TemporaryDirectory directory_;
  std::optional<test::DaemonProcess> daemon_;
};

// --- Fork

// Everything that a trainer may have in its hands when it forks.
struct Trainer {
  Client client;
  Model model;
  std::optional<GatheredUnit> gathered;
  std::optional<UnitGradients> gradients;
  std::optional<PendingCommit> commit;
};

// OK if every call of a forked child is refused with the reason.
absl::Status ExpectRefused(Trainer& trainer) {
  for (const absl::Status& answer :
       {trainer.client.CreateModel(TwoMatrices("third")).status(),
        trainer.client.OpenModel(TwoMatrices("third")).status(),
        trainer.client.DeleteModel("plain"),
        trainer.client.Import("plain", {}),
        trainer.client.Export("plain", {}, [](const ExportedExtent&) { return absl::OkStatus(); }).status(),
        trainer.client.Save("plain").status(),
        trainer.client.Saves("").status(),
        trainer.client.Restore("plain", "latest").status(),
        trainer.client.Models().status(),
        trainer.client.GetDaemonInfo().status(),
        trainer.client.GetMemory().status(),
        Client::Connect({.rank = 0}).status(),
        trainer.model.status(),
        trainer.model.Gather("a", Phase::kForward).status(),
        trainer.model.Gradients("a").status(),
        trainer.model.Commit({}).status(),
        trainer.model.Detach(),
        trainer.gathered->Wait(),
        trainer.gathered->Get("a.w").status(),
        trainer.gradients->Get("b.w").status(),
        trainer.gradients->Push(),
        trainer.commit->Wait().status()}) {
    const bool says_why = absl::StrContains(answer.message(), "in a forked child");
    if (answer.code() != absl::StatusCode::kFailedPrecondition || !says_why)
      return absl::UnknownError(answer.ToString());
  }
  return absl::OkStatus();
}

// Runs in a forked child: uses the trainer's copy, if `uses`, and destroys it, member by member.
absl::Status RunChild(Trainer& trainer, bool uses) {
  if (uses) RETURN_IF_ERROR(ExpectRefused(trainer));
  const Trainer ended = std::move(trainer);
  return absl::OkStatus();
}

absl::Status Push(UnitGradients& gradients, const std::string& parameter, float value) {
  ASSIGN_OR_RETURN(const GradientView view, gradients.Get(parameter));
  std::fill(view.fp32().begin(), view.fp32().end(), value);
  return gradients.Push();
}

// Three steps; calls `between` in the middle of each, with everything in hand. What was gathered at the end.
absl::StatusOr<std::vector<float>> Train(Trainer& trainer, const std::function<absl::Status()>& between) {
  for (int step = 1; step <= 3; ++step) {
    ASSIGN_OR_RETURN(trainer.commit, trainer.model.Commit({.learning_rate = 0.01f}));
    ASSIGN_OR_RETURN(trainer.gathered, trainer.model.Gather("a", Phase::kForward));
    RETURN_IF_ERROR(trainer.gathered->Wait());
    ASSIGN_OR_RETURN(trainer.gradients, trainer.model.Gradients("b"));
    RETURN_IF_ERROR(between());
    RETURN_IF_ERROR(Push(*trainer.gradients, "b.w", static_cast<float>(step)));
    trainer.gathered.reset();
    RETURN_IF_ERROR(trainer.commit->Wait().status());
  }
  ASSIGN_OR_RETURN(trainer.commit, trainer.model.Commit({.learning_rate = 0.01f}));
  ASSIGN_OR_RETURN(trainer.gathered, trainer.model.Gather("b", Phase::kForward));
  RETURN_IF_ERROR(trainer.gathered->Wait());
  ASSIGN_OR_RETURN(const Matrix matrix, trainer.gathered->Get("b.w"));
  std::vector<float> values(matrix.rows * matrix.columns);
  RETURN_IF_ERROR(matrix.Decode(values.data()));
  return values;
}

class ForkedTrainerTest : public ClientLivesTest, public testing::WithParamInterface<bool> {
 protected:
  absl::StatusOr<Trainer> Open(const std::string& model) {
    ASSIGN_OR_RETURN(Client client, Connect());
    ASSIGN_OR_RETURN(Model opened, client.OpenModel(TwoMatrices(model)));
    return Trainer{
        .client = std::move(client), .model = std::move(opened), .gathered = {}, .gradients = {}, .commit = {}};
  }
};

TEST_P(ForkedTrainerTest, AForkInTheMiddleOfAStepChangesNothing) {
  StartDaemon();
  ASSERT_OK_AND_ASSIGN(Trainer plain, Open("plain"));
  ASSERT_OK_AND_ASSIGN(const std::vector<float> expected, Train(plain, [] { return absl::OkStatus(); }));
  ASSERT_OK_AND_ASSIGN(Trainer forking, Open("forking"));
  int children = 0;
  ASSERT_OK_AND_ASSIGN(const std::vector<float> seen, Train(forking, [&] {
                         test::ChildProcess child = test::ChildProcess::Run([&](test::Board&) {
                           const absl::Status status = RunChild(forking, /*uses=*/children > 0);
                           if (status.ok() && GetParam()) std::exit(0);
                           return status;
                         });
                         ++children;
                         return child.Await();
                       }));
  EXPECT_EQ(children, 3);
  EXPECT_TRUE(seen == expected);
  EXPECT_OK(forking.model.Detach());
}

INSTANTIATE_TEST_SUITE_P(ChildEndsBy, ForkedTrainerTest, testing::Values(false, true),
                         [](const auto& info) { return info.param ? "exit" : "_exit"; });

// --- The daemon's lives

TEST_F(ClientLivesTest, AClientOutlivesItsDaemon) {
  StartDaemon();
  ASSERT_OK_AND_ASSIGN(Client client, Connect());
  {
    ASSERT_OK_AND_ASSIGN(Model model, client.OpenModel(TwoMatrices("two")));
    ASSERT_OK_AND_ASSIGN(UnitGradients gradients, model.Gradients("a"));
    ASSERT_OK_AND_ASSIGN(const GradientView view, gradients.Get("a.w"));
    EXPECT_THAT(view.Write({}),
                StatusIs(absl::StatusCode::kInvalidArgument, "write gradient of a.w: want 48 x 32 values, got 0"));
    ASSERT_OK(gradients.Push());
    // It dies without an answer to what comes now.
    daemon_->Pause();
    ASSERT_OK(model.Commit({}));
    ASSERT_OK_AND_ASSIGN(GatheredUnit unit, model.Gather("a", Phase::kForward));
    EXPECT_THAT(unit.Get("a.w"), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("a successful Wait")));
    KillDaemon();
    const auto is_death = StatusIs(absl::StatusCode::kUnavailable, HasSubstr("has died"));
    EXPECT_THAT(unit.Wait(), is_death);
    EXPECT_THAT(unit.Get("a.w"), is_death);
  }
  const auto is_told =
      StatusIs(absl::StatusCode::kUnavailable, AllOf(HasSubstr(directory_.path()), HasSubstr("start paramshardd")));
  EXPECT_THAT(client.CreateModel(TwoMatrices("two")), is_told);
  EXPECT_THAT(client.OpenModel(TwoMatrices("two")), is_told);
  for (int life = 0; life < 2; ++life) {
    StartDaemon();
    EXPECT_THAT(client.DeleteModel("two"), StatusIs(absl::StatusCode::kNotFound));
    ASSERT_OK_AND_ASSIGN(Model model, client.OpenModel(TwoMatrices("two")));
    ASSERT_OK(model.Detach());
    KillDaemon();
  }
}

TEST_F(ClientLivesTest, OpenModelSaysOnceThatCommitsAreLost) {
  StartDaemon();
  ASSERT_OK_AND_ASSIGN(Client client, Connect());
  ASSERT_OK_AND_ASSIGN(Client accepting, Client::Connect({.socket_dir = directory_.path(), .accept_rollback = true}));
  ASSERT_OK_AND_ASSIGN(Client somebody, Connect());
  const std::vector<float> values(48 * 32, 1.0f);
  const auto train = [](Client& trainer) {
    ASSERT_OK_AND_ASSIGN(Model model, trainer.OpenModel(TwoMatrices("two")));
    for (int step = 0; step < 2; ++step) {
      ASSERT_OK_AND_ASSIGN(PendingCommit commit, model.Commit({}));
      ASSERT_OK(commit.Wait());
    }
    ASSERT_OK(model.Detach());
  };
  const auto go_back = [&](Client& by) {
    ASSERT_OK(
        by.Import("two", {ImportTensor{.parameter = "a.w", .values = values}}, {.commit_number = 1, .version = 1}));
  };
  train(client);
  go_back(somebody);
  EXPECT_THAT(
      client.OpenModel(TwoMatrices("two")),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rolled back from commit 2, which was answered, to commit 1")));
  train(client);
  // Its own import is no news to it.
  go_back(client);
  train(client);
  train(accepting);
  go_back(somebody);
  {
    ASSERT_OK_AND_ASSIGN(const Model model, accepting.OpenModel(TwoMatrices("two")));
    EXPECT_EQ(model.commit_number(), 1);
  }
  ASSERT_OK_AND_ASSIGN(Client fresh, Connect());
  EXPECT_OK(fresh.OpenModel(TwoMatrices("two")));
}

TEST_F(ClientLivesTest, OpenModelTellsADeletionByAnotherClientFromALoss) {
  StartDaemon();
  ASSERT_OK_AND_ASSIGN(Client client, Connect());
  ASSERT_OK_AND_ASSIGN(Client accepting, Client::Connect({.socket_dir = directory_.path(), .accept_rollback = true}));
  ASSERT_OK_AND_ASSIGN(Client somebody, Connect());
  const auto train = [](Client& trainer, int commits) {
    ASSERT_OK_AND_ASSIGN(Model model, trainer.OpenModel(TwoMatrices("two")));
    for (int step = 0; step < commits; ++step) {
      ASSERT_OK_AND_ASSIGN(PendingCommit commit, model.Commit({}));
      ASSERT_OK(commit.Wait());
    }
    ASSERT_OK(model.Detach());
  };
  const auto is_told = StatusIs(absl::StatusCode::kAborted, HasSubstr("deleted"));
  train(client, 2);
  ASSERT_OK(somebody.DeleteModel("two"));
  EXPECT_THAT(client.OpenModel(TwoMatrices("two")), is_told);
  train(client, 2);
  // Also of one that is as far, or farther, by now.
  ASSERT_OK(somebody.DeleteModel("two"));
  train(somebody, 3);
  EXPECT_THAT(client.OpenModel(TwoMatrices("two")), is_told);
  train(client, 1);
  // Its own deletion is no news to it, nor one of a model of which it has seen no answer.
  ASSERT_OK(client.DeleteModel("two"));
  train(client, 0);
  ASSERT_OK(somebody.DeleteModel("two"));
  train(client, 0);
  train(accepting, 1);
  ASSERT_OK(somebody.DeleteModel("two"));
  train(accepting, 1);
}

// Mappings of this process of planes or slots.
int TensorMappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (absl::StrContains(line, "paramshard-planes") || absl::StrContains(line, "paramshard-slots")) ++count;
  }
  return count;
}

TEST_F(ClientLivesTest, OpenModelWaitsForADaemonThatIsStartedAgain) {
  StartDaemon();
  int waits = 0;
  ASSERT_OK_AND_ASSIGN(Client client, Client::Connect(Patient(&waits)));
  ASSERT_OK_AND_ASSIGN(Model old, client.OpenModel(TwoMatrices("two")));
  KillDaemon();
  ASSERT_OK_AND_ASSIGN(Model model, client.OpenModel(TwoMatrices("two")));
  EXPECT_EQ(waits, 1);
  EXPECT_EQ(model.commit_number(), 0);
  EXPECT_OK(model.status());
  EXPECT_THAT(old.Gather("a", Phase::kForward), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("has died")));
  EXPECT_THAT(old.Gradients("a"), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(old.Commit({}), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(ClientLivesTest, WhatAModelOfADeadDaemonHasMappedIsGivenBackBeforeTheWait) {
  StartDaemon();
  int waits = 0;
  int mapped_meanwhile = -1;
  Client::Options options = Patient(&waits);
  options.on_wait = [&, start = options.on_wait](absl::string_view text) {
    mapped_meanwhile = TensorMappings();
    start(text);
  };
  ASSERT_OK_AND_ASSIGN(Client client, Client::Connect(options));
  ASSERT_OK_AND_ASSIGN(const Model old, client.OpenModel(TwoMatrices("two")));
  EXPECT_GT(TensorMappings(), 0);
  KillDaemon();
  ASSERT_OK(client.OpenModel(TwoMatrices("two")));
  EXPECT_EQ(mapped_meanwhile, 0);
}

TEST_F(ClientLivesTest, ViewsOfAHandleThatIsHeldStayMapped) {
  StartDaemon();
  int waits = 0;
  ASSERT_OK_AND_ASSIGN(Client client, Client::Connect(Patient(&waits)));
  ASSERT_OK_AND_ASSIGN(Model old, client.OpenModel(TwoMatrices("two")));
  ASSERT_OK_AND_ASSIGN(GatheredUnit unit, old.Gather("a", Phase::kForward));
  ASSERT_OK(unit.Wait());
  ASSERT_OK_AND_ASSIGN(const Matrix matrix, unit.Get("a.w"));
  std::vector<float> before(matrix.rows * matrix.columns);
  ASSERT_OK(matrix.Decode(before.data()));
  KillDaemon();
  ASSERT_OK(client.OpenModel(TwoMatrices("two")));
  std::vector<float> after(before.size());
  ASSERT_OK(matrix.Decode(after.data()));
  EXPECT_TRUE(after == before);
}

TEST_F(ClientLivesTest, WhatIsKeptMappedOutlivesHandleModelAndClient) {
  StartDaemon();
  int waits = 0;
  absl::Span<const uint8_t> data;
  std::shared_ptr<const void> kept;
  {
    ASSERT_OK_AND_ASSIGN(Client client, Client::Connect(Patient(&waits)));
    ASSERT_OK_AND_ASSIGN(Model old, client.OpenModel(TwoMatrices("two")));
    {
      ASSERT_OK_AND_ASSIGN(GatheredUnit unit, old.Gather("a", Phase::kForward));
      ASSERT_OK(unit.Wait());
      ASSERT_OK_AND_ASSIGN(const Matrix matrix, unit.Get("a.w"));
      data = matrix.data;
      kept = old.KeepMapped();
    }
    KillDaemon();
    ASSERT_OK(client.OpenModel(TwoMatrices("two")));
  }
  EXPECT_GT(TensorMappings(), 0);
  EXPECT_EQ(std::vector<uint8_t>(data.begin(), data.end()).size(), data.size());
  kept.reset();
  EXPECT_EQ(TensorMappings(), 0);
}

// Ends a wait when it is asked for the third time.
TEST_F(ClientLivesTest, WhoeverWaitsForOtherRanksMayBeInterrupted) {
  StartDaemon();
  Client::Options options = {.socket_dir = directory_.path()};
  int asked = 0;
  options.interrupted = [&asked] { return ++asked < 3 ? absl::OkStatus() : absl::CancelledError("enough"); };
  ASSERT_OK_AND_ASSIGN(Client client, Client::Connect(options));
  EXPECT_THAT(client.OpenModel(TwoMatrices("two")), IsOk()) << "nobody is waited for";
  KillDaemon();
  asked = 0;
  options.restart_timeout = absl::Hours(1);
  EXPECT_THAT(Client::Connect(options), StatusIs(absl::StatusCode::kCancelled, "enough"));
  EXPECT_EQ(asked, 3);
}

TEST_F(ClientLivesTest, ConnectWaitsWhereADaemonWasKilled) {
  StartDaemon();
  KillDaemon();
  int waits = 0;
  EXPECT_OK(Client::Connect(Patient(&waits)));
  EXPECT_EQ(waits, 1);
}

TEST_F(ClientLivesTest, WhatNoWaitMendsComesAtOnce) {
  int waits = 0;
  EXPECT_THAT(Client::Connect(Patient(&waits)), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("No such file")));
  StartDaemon();
  ASSERT_OK_AND_ASSIGN(Client client, Client::Connect(Patient(&waits)));
  EXPECT_THAT(client.OpenModel(ModelSpec{.name = "nothing"}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(waits, 0);
}

TEST_F(ClientLivesTest, AWaitEndsWithWhatItHasWaitedFor) {
  StartDaemon();
  int waits = 0;
  Client::Options options = Patient(&waits);
  options.restart_timeout = absl::Milliseconds(50);
  options.on_wait = [&](absl::string_view) { ++waits; };
  ASSERT_OK_AND_ASSIGN(Client client, Client::Connect(options));
  KillDaemon();
  EXPECT_THAT(client.OpenModel(TwoMatrices("two")),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("connected to exited"), HasSubstr("timed out after 50ms"))));
  EXPECT_EQ(waits, 1);
}

TEST_F(ClientLivesTest, ACallUnderWhichTheDaemonDiesSaysSo) {
  StartDaemon();
  ASSERT_OK_AND_ASSIGN(Client client, Connect());
  daemon_->Pause();
  std::thread killer([&] { daemon_->Signal(SIGKILL); });
  EXPECT_THAT(client.CreateModel(TwoMatrices("two")),
              StatusIs(absl::StatusCode::kUnavailable, AllOf(HasSubstr("create model two"), HasSubstr("daemon"))));
  killer.join();
}

}  // namespace
}  // namespace paramshard
