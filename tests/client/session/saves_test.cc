// Saves, restores and what the daemon says of itself, against a real daemon.
#include <unistd.h>

#include <csignal>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "gmock/gmock.h"
#include "kernels/base/status_macros.h"
#include "tests/support/daemon_process.h"
#include "tests/support/status_matchers.h"

namespace paramshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

// One unit "a" of one matrix "a.w".
ModelSpec OneMatrix(const std::string& name = "m", int64_t columns = 32) {
  ParameterSpec weight;
  weight.name = "a.w";
  weight.shape = {48, columns};
  weight.initial_value = {Initializer::kNormal, 0.0f, 0.1f};
  ModelSpec spec;
  spec.name = name;
  spec.units.push_back({.name = "a", .parameters = {weight}});
  return spec;
}

class SavesTest : public testing::Test {
 protected:
  void StartDaemon(const std::vector<std::string>& more_flags) {
    std::vector<std::string> flags = {"--device=cpu:0", "--keeper=off"};
    flags.insert(flags.end(), more_flags.begin(), more_flags.end());
    absl::StatusOr<test::DaemonProcess> daemon = test::DaemonProcess::Start(PARAMSHARDD, sockets_.path(), flags);
    ASSERT_OK(daemon);
    daemon_.emplace(*std::move(daemon));
  }
  void StartDaemonThatSaves() { StartDaemon({"--save-dir=" + saves_.path()}); }

  absl::StatusOr<Client> Connect(std::function<absl::Status()> interrupted = {}) const {
    return Client::Connect(
        {.socket_dir = sockets_.path(), .attach_timeout = absl::Seconds(60), .interrupted = std::move(interrupted)});
  }

  // Brings a model that is not open to one more commit, and says what its masters are then.
  static absl::StatusOr<std::vector<float>> Train(Client& client) {
    ASSIGN_OR_RETURN(Model model, client.OpenModel(OneMatrix()));
    ASSIGN_OR_RETURN(UnitGradients gradients, model.Gradients("a"));
    ASSIGN_OR_RETURN(const GradientView view, gradients.Get("a.w"));
    RETURN_IF_ERROR(view.Write(std::vector<float>(view.rows * view.columns, 1.0f)));
    RETURN_IF_ERROR(gradients.Push());
    ASSIGN_OR_RETURN(PendingCommit commit,
                     model.Commit({.client_state = absl::StrCat("after ", model.commit_number())}));
    RETURN_IF_ERROR(commit.Wait().status());
    RETURN_IF_ERROR(model.Detach());
    return Masters(client);
  }

  static absl::StatusOr<std::vector<float>> Masters(Client& client) {
    std::vector<float> values;
    RETURN_IF_ERROR(client
                        .Export("m", {},
                                [&](const ExportedExtent& extent) {
                                  values.insert(values.end(), extent.values.begin(), extent.values.end());
                                  return absl::OkStatus();
                                })
                        .status());
    return values;
  }

  const test::TemporaryDirectory sockets_;
  const test::TemporaryDirectory saves_;
  std::optional<test::DaemonProcess> daemon_;
};

TEST_F(SavesTest, ASaveIsListedAndComesBack) {
  StartDaemonThatSaves();
  ASSERT_OK_AND_ASSIGN(Client client, Connect());
  ASSERT_OK_AND_ASSIGN(const std::vector<float> saved_values, Train(client));
  ASSERT_OK_AND_ASSIGN(const SaveRecord saved, client.Save("m"));
  EXPECT_EQ(saved.state, SaveState::kPublished);
  EXPECT_TRUE(saved.is_over() && saved.is_saved());
  EXPECT_OK(saved.error);
  EXPECT_EQ(saved.reason, SaveReason::kCall);
  EXPECT_EQ(saved.step, 1);
  EXPECT_THAT(saved.path, StartsWith(saves_.path() + "/m/step-000000000001-"));
  EXPECT_GE(saved.size_bytes, static_cast<int64_t>(3 * saved_values.size() * sizeof(float)));
  EXPECT_LE(saved.written_bytes, saved.size_bytes);

  ASSERT_OK_AND_ASSIGN(const SaveRecord again, client.Save("m"));
  EXPECT_EQ(again.state, SaveState::kAlreadySaved);
  EXPECT_EQ(again.path, saved.path);
  ASSERT_OK_AND_ASSIGN(const std::vector<SaveRecord> saves, client.Saves("m"));
  ASSERT_THAT(saves, SizeIs(2));
  EXPECT_EQ(saves[0].number, saved.number);
  EXPECT_EQ(saves[1].state, SaveState::kAlreadySaved);
  EXPECT_THAT(client.Saves(""), IsOkAndHolds(SizeIs(2)));

  ASSERT_OK_AND_ASSIGN(const std::vector<float> moved_on, Train(client));
  ASSERT_NE(moved_on, saved_values);
  std::vector<std::pair<int64_t, int64_t>> progress;
  ASSERT_OK_AND_ASSIGN(const RestoreSummary restored,
                       client.Restore("m", "latest", {.on_progress = [&](int64_t done_bytes, int64_t all_bytes) {
                                        progress.emplace_back(done_bytes, all_bytes);
                                      }}));
  EXPECT_EQ(restored.path, saved.path);
  EXPECT_EQ(restored.step, 1);
  EXPECT_EQ(restored.version, 1);
  EXPECT_EQ(restored.parent_history_id, saved.history_id);
  EXPECT_NE(restored.history_id, saved.history_id);
  EXPECT_EQ(restored.saved_world_size, 1);
  ASSERT_FALSE(progress.empty());
  EXPECT_EQ(progress.front().first, 0);
  EXPECT_THAT(Masters(client), IsOkAndHolds(saved_values));
  ASSERT_OK_AND_ASSIGN(const Model model, client.OpenModel(OneMatrix()));
  EXPECT_EQ(model.commit_number(), 1);
  EXPECT_EQ(model.client_state(), "after 0");
}

TEST_F(SavesTest, ASaveThatNobodyWaitsForHasBegun) {
  StartDaemonThatSaves();
  ASSERT_OK_AND_ASSIGN(Client client, Connect());
  ASSERT_OK(Train(client));
  ASSERT_OK_AND_ASSIGN(const SaveRecord begun, client.Save("m", {.wait = false}));
  SaveRecord ended = begun;
  while (!ended.is_over()) {
    ASSERT_OK_AND_ASSIGN(const std::vector<SaveRecord> saves, client.Saves("m"));
    ASSERT_THAT(saves, SizeIs(1));
    ended = saves[0];
  }
  EXPECT_EQ(ended.number, begun.number);
  EXPECT_EQ(ended.state, SaveState::kPublished);
}

TEST_F(SavesTest, AModelIsCreatedFromASave) {
  StartDaemonThatSaves();
  ASSERT_OK_AND_ASSIGN(Client client, Connect());
  ASSERT_OK_AND_ASSIGN(const std::vector<float> saved_values, Train(client));
  ASSERT_OK_AND_ASSIGN(const SaveRecord saved, client.Save("m"));
  for (const std::string& restore : {std::string("latest"), std::string("1"), saved.path}) {
    ASSERT_OK(client.DeleteModel("m"));
    ASSERT_OK(client.CreateModel(OneMatrix(), {.restore = restore}));
    EXPECT_THAT(Masters(client), IsOkAndHolds(saved_values)) << restore;
  }
  EXPECT_THAT(client.CreateModel(OneMatrix("other"), {.restore = saved.path}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(SavesTest, ADaemonWithoutAFolderSaysSo) {
  StartDaemon({});
  ASSERT_OK_AND_ASSIGN(Client client, Connect());
  ASSERT_OK(client.CreateModel(OneMatrix()));
  EXPECT_THAT(client.Save("m"), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--save-dir")));
  EXPECT_THAT(client.Restore("m", "latest"), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--save-dir")));
  EXPECT_THAT(client.Saves("m"), IsOkAndHolds(IsEmpty()));
}

TEST_F(SavesTest, WhatCannotBeRestoredIsNamed) {
  StartDaemonThatSaves();
  ASSERT_OK_AND_ASSIGN(Client client, Connect());
  ASSERT_OK(Train(client));
  ASSERT_OK(client.Save("m"));
  EXPECT_THAT(client.Save("nobody"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("nobody")));
  EXPECT_THAT(client.Saves("nobody"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("nobody")));
  EXPECT_THAT(client.Restore("nobody", "latest"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("nobody")));
  EXPECT_THAT(client.Restore("m", "2"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("step-000000000001-")));
  EXPECT_THAT(client.Restore("m", "newest"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("newest")));
  ASSERT_OK_AND_ASSIGN(const Model model, client.OpenModel(OneMatrix()));
  EXPECT_THAT(client.Restore("m", "latest"), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                      AllOf(HasSubstr("rank 0"), HasSubstr(absl::StrCat(getpid())))));
}

// A daemon that stands still answers nothing: a client waits for it until it is interrupted.
TEST_F(SavesTest, WaitsAreInterrupted) {
  StartDaemonThatSaves();
  bool interrupts = false;
  ASSERT_OK_AND_ASSIGN(
      Client client, Connect([&interrupts] { return interrupts ? absl::CancelledError("enough") : absl::OkStatus(); }));
  ASSERT_OK(Train(client));
  daemon_->Pause();
  interrupts = true;
  EXPECT_THAT(client.Save("m"), StatusIs(absl::StatusCode::kCancelled, "enough"));
  EXPECT_THAT(client.Restore("m", "latest"), StatusIs(absl::StatusCode::kCancelled, "enough"));
  EXPECT_THAT(client.GetDaemonInfo(), StatusIs(absl::StatusCode::kCancelled, "enough"));
  interrupts = false;
  daemon_->Signal(SIGCONT);
  EXPECT_OK(client.GetDaemonInfo());
}

TEST_F(SavesTest, ADaemonThatDiesUnderACallIsNamed) {
  StartDaemonThatSaves();
  bool asked = true;  // the daemon dies when a wait asks for the first time
  ASSERT_OK_AND_ASSIGN(Client client, Connect([&] {
                         if (!std::exchange(asked, true)) daemon_->Signal(SIGKILL);
                         return absl::OkStatus();
                       }));
  ASSERT_OK(client.CreateModel(OneMatrix()));
  daemon_->Pause();
  asked = false;
  EXPECT_THAT(client.Save("m"), StatusIs(absl::StatusCode::kUnavailable, AllOf(StartsWith("save m: the daemon (pid "),
                                                                               HasSubstr("exited during the call"))));
}

TEST_F(SavesTest, TheDaemonDescribesItselfAndItsModels) {
  StartDaemon({"--device=cpu:1"});
  ASSERT_OK_AND_ASSIGN(Client client, Connect());
  ASSERT_OK_AND_ASSIGN(const DaemonInfo daemon, client.GetDaemonInfo());
  EXPECT_FALSE(daemon.version.empty());
  EXPECT_EQ(daemon.pid, daemon_->pid());
  EXPECT_THAT(daemon.devices, ElementsAre("cpu:0", "cpu:1"));
  EXPECT_EQ(daemon.first_rank, 0);
  EXPECT_EQ(daemon.world_size, 2);
  EXPECT_EQ(daemon.node, 0);
  EXPECT_EQ(daemon.nodes, 1);
  EXPECT_GT(daemon.started_at, absl::UnixEpoch());

  EXPECT_THAT(client.Models(), IsOkAndHolds(IsEmpty()));
  ASSERT_OK(client.CreateModel(OneMatrix("b")));
  ASSERT_OK(client.CreateModel(OneMatrix("a")));
  ASSERT_OK_AND_ASSIGN(const std::vector<ModelSummary> models, client.Models());
  ASSERT_THAT(models, SizeIs(2));
  EXPECT_EQ(models[0].name, "a");
  EXPECT_EQ(models[1].name, "b");
  EXPECT_EQ(models[0].parameter_count, 1);
  EXPECT_EQ(models[0].element_count, 48 * 32);
  EXPECT_EQ(models[0].world_size, 2);
  EXPECT_EQ(models[0].shard_size, 2);
  EXPECT_EQ(models[0].commit_number, 0);
  EXPECT_EQ(models[0].attached_ranks, 0);
  EXPECT_FALSE(models[0].running);
  EXPECT_EQ(models[0].epoch, std::nullopt);
  EXPECT_EQ(models[0].unusable, "");

  // So few rows stay together, on the first rank, in float32.
  ASSERT_OK_AND_ASSIGN(const std::vector<MemoryUse> uses, client.GetMemory());
  std::vector<std::string> masters;
  for (const MemoryUse& use : uses) {
    if (use.memory_class != "master") continue;
    masters.push_back(absl::StrCat(use.model, " ", use.device));
    EXPECT_GE(use.size_bytes, 48 * 32 * 4);
  }
  EXPECT_THAT(masters, UnorderedElementsAre("a cpu:0", "b cpu:0"));
}

}  // namespace
}  // namespace paramshard
