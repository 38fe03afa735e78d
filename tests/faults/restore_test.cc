// Real daemons and trainers in processes of their own: a run that goes on from a checkpoint ends in the bytes of one
// that was never interrupted.
#include <csignal>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "common/checkpoint/step_folder.h"
#include "common/checkpoint/tensor_key.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "tests/common/checkpoint/saved_model.h"
#include "tests/faults/training.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"
#include "tests/support/status_matchers.h"

namespace paramshard::test {
namespace {

using checkpoint::SavedModel;

constexpr char kModel[] = "restored";
constexpr int64_t kSavedStep = 3;
constexpr int64_t kLastStep = 6;

// The model's state by an export, put together: all of its state is fp32, and no format needs amaxes.
absl::StatusOr<SavedModel> ReadState(const std::string& socket_dir) {
  const ModelSpec spec = checkpoint::Checked(SmallModel(kModel));
  ASSIGN_OR_RETURN(Client client, Client::Connect({.socket_dir = socket_dir}));
  const std::map<TensorKind, std::string> keys = {
      {TensorKind::kMaster, "master/"}, {TensorKind::kExpAvg, "exp_avg/"}, {TensorKind::kExpAvgSq, "exp_avg_sq/"}};
  SavedModel::Arrays arrays;
  std::map<std::string, int64_t> steps;
  const auto take = [&](const ExportedExtent& extent) {
    std::vector<uint8_t>& array = arrays[keys.at(extent.kind) + extent.parameter];
    const size_t bytes = extent.values.size() * sizeof(float);
    const size_t first = extent.rows == 0 ? 0 : extent.first_row * (bytes / extent.rows);
    array.resize(std::max(array.size(), first + bytes));
    std::memcpy(array.data() + first, extent.values.data(), bytes);
    steps[extent.parameter] = extent.step;
    return absl::OkStatus();
  };
  ASSIGN_OR_RETURN(
      const ExportSummary summary,
      client.Export(kModel, {.kinds = {TensorKind::kMaster, TensorKind::kExpAvg, TensorKind::kExpAvgSq}}, take));
  checkpoint::CommonState common{.commit_number = summary.commit_number, .version = summary.version};
  for (const UnitSpec& unit : spec.units) {
    for (const ParameterSpec& parameter : unit.parameters) common.step_counts.push_back(steps[parameter.name]);
  }
  return SavedModel(spec, std::move(arrays), std::move(common));
}

class RestoredRunTest : public testing::Test {
 protected:
  void StartDaemon(const std::vector<std::string>& more_flags) {
    daemon_.reset();
    std::vector<std::string> flags = DeviceFlags(ranks_);
    flags.push_back("--save-dir=" + saves_.path());
    flags.insert(flags.end(), more_flags.begin(), more_flags.end());
    absl::StatusOr<DaemonProcess> daemon = DaemonProcess::Start(Program(PARAMSHARDD), sockets_.path(), flags);
    ASSERT_OK(daemon.status());
    daemon_.emplace(*std::move(daemon));
  }

  // All ranks, up to a commit.
  void TrainTo(int64_t commits, const std::string& restore = "") {
    std::vector<ChildProcess> trainers;
    for (int rank = 0; rank < ranks_; ++rank) {
      Training training{.socket_dir = sockets_.path(), .model = kModel, .rank = rank, .commits = commits};
      training.restore = restore;
      trainers.push_back(ChildProcess::Run([training](Board&) { return Train(training); }));
    }
    for (ChildProcess& trainer : trainers) EXPECT_OK(trainer.Await());
  }

  // A checkpoint as a world of that size writes it.
  void Save(int world) {
    ChildProcess saver = ChildProcess::Run([&](Board&) -> absl::Status {
      ASSIGN_OR_RETURN(const SavedModel saved, ReadState(sockets_.path()));
      saved.Write(absl::StrCat(saves_.path(), "/", checkpoint::ModelFolderName(kModel)),
                  {.world = {world, world}, .step = kSavedStep, .history = 1, .client_state = [](int) {
                     return absl::StrCat("after ", kSavedStep);
                   }});
      return absl::OkStatus();
    });
    ASSERT_OK(saver.Await());
  }

  nlohmann::json Ctl(const std::string& arguments) const {
    const auto output =
        OutputOf(absl::StrCat(Program(PARAMSHARDCTL), " --socket-dir=", sockets_.path(), " -o json ", arguments));
    EXPECT_OK(output.status());
    return output.ok() ? nlohmann::json::parse(*output) : nlohmann::json();
  }
  // Returns the hash of masters and moments; checks that planes match them.
  std::string StateHash() const {
    const nlohmann::json verified = Ctl(absl::StrCat("verify ", kModel));
    EXPECT_EQ(verified["summary"]["mismatchCount"], "0") << verified.dump(2);
    return verified["summary"]["stateHash"];
  }

  const int ranks_ = DevicesUpTo(2);
  TemporaryDirectory sockets_;
  TemporaryDirectory saves_;
  std::optional<DaemonProcess> daemon_;
};

TEST_F(RestoredRunTest, EndsInTheBytesOfOneThatWasNotInterrupted) {
  ASSERT_NO_FATAL_FAILURE(StartDaemon({}));
  TrainTo(kSavedStep);
  Save(/*world=*/3);
  const std::string saved = StateHash();
  TrainTo(kLastStep);
  const std::string expected = StateHash();
  ASSERT_NE(expected, saved);

  // Kills the daemon, and starts a daemon whose models begin with the latest save.
  daemon_->Signal(SIGKILL);
  ASSERT_OK(daemon_->AwaitExit(absl::Seconds(60)).status());
  ASSERT_NO_FATAL_FAILURE(StartDaemon({"--restore=latest"}));
  TrainTo(kLastStep);
  EXPECT_EQ(StateHash(), expected);

  // The same model again, back to where it was saved.
  const nlohmann::json restored = Ctl(absl::StrCat("restore ", kModel, " ", kSavedStep));
  EXPECT_EQ(restored["step"], absl::StrCat(kSavedStep)) << restored.dump(2);
  EXPECT_EQ(restored["savedWorldSize"], 3);
  EXPECT_EQ(StateHash(), saved);
  TrainTo(kLastStep);
  EXPECT_EQ(StateHash(), expected);
}

TEST_F(RestoredRunTest, BeginsWithWhatATrainerAsksFor) {
  ASSERT_NO_FATAL_FAILURE(StartDaemon({}));
  TrainTo(kSavedStep, "latest");
  Save(/*world=*/2);
  TrainTo(kLastStep);
  const std::string expected = StateHash();
  ASSERT_NO_FATAL_FAILURE(StartDaemon({}));
  TrainTo(kLastStep, absl::StrCat(kSavedStep));
  EXPECT_EQ(StateHash(), expected);
}

}  // namespace
}  // namespace paramshard::test
