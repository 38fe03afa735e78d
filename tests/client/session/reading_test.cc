// Readers beside a real daemon and its trainers.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "client/reader.h"
#include "gmock/gmock.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/codec.h"
#include "tests/support/daemon_process.h"
#include "tests/support/every_format.h"
#include "tests/support/status_matchers.h"

namespace paramshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(60);
constexpr absl::Duration kForAnAnswer = absl::Seconds(1);

// A unit for each format: a matrix that all ranks share, a stack of matrices that are owned, and a small vector.
ModelSpec ModelOfEveryFormat() {
  ModelSpec spec{.name = "m"};
  for (const Format format : EveryFormat()) {
    const std::string unit(FormatName(format));
    const auto parameter = [&](absl::string_view name, std::vector<int64_t> shape, Placement placement) {
      return ParameterSpec{.name = absl::StrCat(unit, ".", name),
                           .shape = std::move(shape),
                           .encoding = {.format = format},
                           .initial_value = {Initializer::kNormal, 0.0f, 0.1f},
                           .placement = placement};
    };
    spec.units.push_back({.name = unit,
                          .parameters = {parameter("cut", {300, 72}, Placement::kCut),
                                         parameter("owned", {3, 64, 40}, Placement::kOwned),
                                         parameter("small", {33}, Placement::kCut)}});
  }
  spec.small_parameter_bytes = 1024;
  return spec;
}

// A matrix "w" of equal values, which stay equal as long as its gradients are.
ModelSpec ModelOfEqualValues() {
  ModelSpec spec{
      .name = "m",
      .units = {{.name = "u",
                 .parameters = {{.name = "w", .shape = {256, 64}, .initial_value = {Initializer::kConstant, 1.0f}}}}}};
  spec.groups = {{.optimizer = Optimizer::kSgd}};
  return spec;
}

absl::StatusOr<std::vector<float>> ReadAll(const Snapshot& snapshot, absl::string_view name) {
  ASSIGN_OR_RETURN(const ReadParameter* const parameter, snapshot.Find(name));
  std::vector<float> values(parameter->rows * parameter->columns);
  RETURN_IF_ERROR(snapshot.Read(name, absl::MakeSpan(values)));
  return values;
}

// Reads "w" of equal values again and again until `ended`: each is its commit's, or the snapshot has ended. Returns how
// many were whole.
int ReadUntil(const std::atomic<bool>& ended, Reader& reader, absl::FunctionRef<float(int64_t commit)> value_at) {
  int whole = 0;
  while (!ended && !testing::Test::HasFailure()) {
    const absl::StatusOr<Snapshot> snapshot = reader.Acquire({.timeout = kLong});
    EXPECT_OK(snapshot);
    if (!snapshot.ok()) continue;
    const absl::StatusOr<std::vector<float>> values = ReadAll(*snapshot, "w");
    if (!values.ok()) {
      EXPECT_THAT(values, StatusIs(absl::StatusCode::kAborted));
      continue;
    }
    ++whole;
    EXPECT_EQ(*values, std::vector<float>(256 * 64, value_at(snapshot->version().commit_number)));
  }
  return whole;
}

// Pushes gradients of `value` for every parameter, and commits.
absl::StatusOr<StepResult> Step(Model& model, float value, const std::string& reader_data = "") {
  for (const UnitSpec& unit : model.spec().units) {
    ASSIGN_OR_RETURN(UnitGradients gradients, model.Gradients(unit.name));
    for (const ParameterSpec& parameter : unit.parameters) {
      ASSIGN_OR_RETURN(const GradientView view, gradients.Get(parameter.name));
      std::fill(view.fp32().begin(), view.fp32().end(), value);
    }
    RETURN_IF_ERROR(gradients.Push());
  }
  ASSIGN_OR_RETURN(PendingCommit commit, model.Commit({.learning_rate = 0.125f, .reader_data = reader_data}));
  return commit.Wait();
}

class ReadingTest : public testing::Test {
 protected:
  void StartDaemon(int devices, std::vector<std::string> flags = {}) {
    daemon_.reset();
    for (int i = 0; i < devices; ++i) flags.push_back(absl::StrCat("--device=cpu:", i));
    absl::StatusOr<test::DaemonProcess> daemon = test::DaemonProcess::Start(PARAMSHARDD, directory_.path(), flags);
    ASSERT_OK(daemon);
    daemon_.emplace(*std::move(daemon));
  }

  absl::StatusOr<Client> Connect(int rank = 0) {
    return Client::Connect({.rank = rank, .socket_dir = directory_.path(), .attach_timeout = absl::Seconds(20)});
  }
  absl::StatusOr<std::unique_ptr<Reader>> MakeReader() {
    return Reader::Create({.model = "m", .socket_dir = directory_.path(), .name = "test"});
  }

  const test::TemporaryDirectory directory_;
  std::optional<test::DaemonProcess> daemon_;
};

// Returns the masters of the whole model, by parameter.
absl::StatusOr<std::map<std::string, std::vector<float>>> ExportMasters(Client& client) {
  std::map<std::string, std::vector<float>> masters;
  RETURN_IF_ERROR(
      client
          .Export("m", {},
                  [&](const ExportedExtent& extent) {
                    std::vector<float>& whole = masters[extent.parameter];
                    const auto columns = static_cast<int64_t>(extent.values.size()) / extent.rows;
                    whole.resize(std::max<size_t>(whole.size(), (extent.first_row + extent.rows) * columns));
                    std::copy(extent.values.begin(), extent.values.end(), whole.begin() + extent.first_row * columns);
                    return absl::OkStatus();
                  })
          .status());
  return masters;
}

// Returns the master's values as the row-wise plane of its format has them. Requires a format whose scales are made of
// these values alone.
std::vector<float> Rounded(const ReadParameter& parameter, const std::vector<float>& master) {
  const Encoding& encoding = parameter.encoding;
  std::vector<uint8_t> data(DataBytes(encoding, parameter.rows, parameter.columns)),
      scales(ScaleBytes(encoding, Plane::kRowWise, parameter.rows, parameter.columns)),
      amax(AmaxBytes(encoding.format));
  EncodePlanes(encoding, master.data(), parameter.rows, parameter.columns, {data.data(), scales.data(), amax.data()},
               {}, {.amax = Amax(master.data(), static_cast<int64_t>(master.size()))});
  std::vector<float> values(master.size());
  DecodePlane(encoding, Plane::kRowWise, {data.data(), scales.data(), amax.data()}, parameter.rows, parameter.columns,
              values.data());
  return values;
}

class ReadingOnRanksTest : public ReadingTest, public testing::WithParamInterface<int> {
 protected:
  // Trains on every rank at once; rank 0 gives what its next forward would compute with.
  std::map<std::string, std::vector<float>> Train() {
    std::map<std::string, std::vector<float>> gathered;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < GetParam(); ++rank) {
      threads.emplace_back([&, rank] {
        std::map<std::string, std::vector<float>> of_rank;
        EXPECT_OK(TrainRank(rank, of_rank));
        if (rank == 0) gathered = std::move(of_rank);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return gathered;
  }

 private:
  absl::Status TrainRank(int rank, std::map<std::string, std::vector<float>>& gathered) {
    ASSIGN_OR_RETURN(Client client, Connect(rank));
    ASSIGN_OR_RETURN(Model model, client.OpenModel(ModelOfEveryFormat()));
    for (const float gradient : {1.0f, -0.5f}) RETURN_IF_ERROR(Step(model, gradient).status());
    for (const UnitSpec& unit : model.spec().units) {
      ASSIGN_OR_RETURN(GatheredUnit weights, model.Gather(unit.name, Phase::kForward));
      RETURN_IF_ERROR(weights.Wait());
      for (const ParameterSpec& parameter : unit.parameters) {
        ASSIGN_OR_RETURN(const Matrix matrix, weights.Get(parameter.name));
        std::vector<float>& values = gathered[parameter.name];
        values.resize(matrix.rows * matrix.columns);
        RETURN_IF_ERROR(matrix.Decode(values.data()));
      }
    }
    return absl::OkStatus();
  }
};

TEST_P(ReadingOnRanksTest, ValuesAreThoseOfTheNextForwardAndTheRoundedMasters) {
  StartDaemon(GetParam());
  const std::map<std::string, std::vector<float>> gathered = Train();
  ASSERT_OK_AND_ASSIGN(Client client, Connect());
  ASSERT_OK_AND_ASSIGN(const auto masters, ExportMasters(client));
  ASSERT_OK_AND_ASSIGN(const auto reader, MakeReader());
  ASSERT_OK_AND_ASSIGN(const Snapshot snapshot, reader->Acquire({.min_commit = 2, .timeout = kLong}));
  EXPECT_EQ(snapshot.version().commit_number, 2);
  EXPECT_EQ(snapshot.parameters().size(), gathered.size());
  for (const ReadParameter& parameter : snapshot.parameters()) {
    SCOPED_TRACE(parameter.name);
    ASSERT_OK_AND_ASSIGN(const std::vector<float> values, ReadAll(snapshot, parameter.name));
    EXPECT_EQ(values, gathered.at(parameter.name));
    if (parameter.encoding.format != Format::kFP8TensorDelayed) {
      EXPECT_EQ(values, Rounded(parameter, masters.at(parameter.name)));
    }
    std::vector<uint16_t> expected(values.size()), rounded(values.size());
    std::transform(values.begin(), values.end(), expected.begin(), EncodeBFloat16);
    ASSERT_OK(snapshot.ReadBFloat16(parameter.name, absl::MakeSpan(rounded)));
    EXPECT_EQ(rounded, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ReadingOnRanksTest, testing::Values(1, 2, 3, 5),
                         [](const auto& info) { return absl::StrCat("ranks_", info.param); });

TEST_F(ReadingTest, ACommitWaitsForASnapshotAndThenEndsIt) {
  StartDaemon(1, {"--reader-hold=100ms"});
  ASSERT_OK_AND_ASSIGN(Client client, Connect());
  ASSERT_OK_AND_ASSIGN(Model model, client.OpenModel(ModelOfEqualValues()));
  ASSERT_OK_AND_ASSIGN(const auto reader, MakeReader());
  ASSERT_OK_AND_ASSIGN(Snapshot held, reader->Acquire());
  ASSERT_OK(Step(model, 1.0f));
  EXPECT_THAT(held.Check(), StatusIs(absl::StatusCode::kAborted, HasSubstr("snapshot of m at commit 0: ended, the "
                                                                           "model is at commit 1 now")));
  EXPECT_THAT(ReadAll(held, "w"), StatusIs(absl::StatusCode::kAborted));
  ASSERT_OK_AND_ASSIGN(const Snapshot next, reader->Acquire({.min_commit = 1, .timeout = kLong}));
  EXPECT_THAT(ReadAll(next, "w"), IsOkAndHolds(std::vector<float>(256 * 64, 0.875f)));
}

TEST_F(ReadingTest, DataOfACommitComesWithItsVersion) {
  StartDaemon(1, {"--keeper=on"});
  ASSERT_OK_AND_ASSIGN(Client client, Connect());
  std::optional<Model> model;
  const auto open = [&] {
    absl::StatusOr<Model> opened = client.OpenModel(ModelOfEqualValues());
    ASSERT_OK(opened);
    model.emplace(*std::move(opened));
  };
  open();
  ASSERT_OK_AND_ASSIGN(const auto reader, MakeReader());
  const auto data = [&](int64_t commit) -> absl::StatusOr<std::string> {
    ASSIGN_OR_RETURN(const Snapshot snapshot, reader->Acquire({.min_commit = commit, .timeout = kLong}));
    return snapshot.data();
  };
  EXPECT_THAT(data(0), IsOkAndHolds(""));
  const std::string longest(4096, '\0');
  int64_t commit = 0;
  for (const std::string& given : {std::string("step 1"), longest, std::string()}) {
    ASSERT_OK(Step(*model, 1.0f, given));
    EXPECT_THAT(data(++commit), IsOkAndHolds(given));
  }
  EXPECT_THAT(Step(*model, 1.0f, longest + "x"),
              StatusIs(absl::StatusCode::kInvalidArgument, "commit reader_data: want at most 4096 bytes, got 4097"));
  // A server that is started again has it, too.
  ASSERT_OK(model->Discard());
  ASSERT_OK(Step(*model, 1.0f, "step 4"));
  model.reset();
  ASSERT_OK_AND_ASSIGN(const DaemonInfo info, client.GetDaemonInfo());
  kill(static_cast<pid_t>(info.pid), SIGKILL);
  open();
  EXPECT_THAT(data(4), IsOkAndHolds("step 4"));
  model.reset();
  const std::vector<float> values(256 * 64, 3.0f);
  ASSERT_OK(client.Import("m", {{.parameter = "w", .values = values}}, {.commit_number = 7, .version = 6}));
  EXPECT_THAT(data(7), IsOkAndHolds(""));
}

TEST_F(ReadingTest, RanksThatGiveOtherDataEndTheEpoch) {
  StartDaemon(2);
  std::vector<std::thread> trainers;
  for (int rank = 0; rank < 2; ++rank) {
    trainers.emplace_back([&, rank] {
      const auto train = [&]() -> absl::Status {
        ASSIGN_OR_RETURN(Client client, Connect(rank));
        ASSIGN_OR_RETURN(Model model, client.OpenModel(ModelOfEqualValues()));
        return Step(model, 1.0f, absl::StrCat("of rank ", rank)).status();
      };
      EXPECT_THAT(train(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                    AllOf(HasSubstr("data for readers \"of rank 0\""), HasSubstr("\"of rank 1\""))));
    });
  }
  for (std::thread& trainer : trainers) trainer.join();
}

TEST_F(ReadingTest, AReaderFollowsTheHistories) {
  StartDaemon(1);
  ASSERT_OK_AND_ASSIGN(const auto reader, MakeReader());
  EXPECT_THAT(reader->Acquire({.timeout = kForAnAnswer}).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("acquire m: timed out after 1s: "), HasSubstr("not found"))));
  ASSERT_OK_AND_ASSIGN(Client client, Connect());
  ASSERT_OK(client.CreateModel(ModelOfEqualValues()));
  ASSERT_OK_AND_ASSIGN(const ModelVersion created, reader->WaitNewer({}, kLong));
  EXPECT_EQ(created.commit_number, 0);
  const std::vector<float> values(256 * 64, 3.0f);
  ASSERT_OK(client.Import("m", {{.parameter = "w", .values = values}}, {.commit_number = 7, .version = 6}));
  ASSERT_OK_AND_ASSIGN(const ModelVersion imported, reader->WaitNewer(created, kLong));
  EXPECT_NE(imported.history_id, created.history_id);
  EXPECT_EQ(imported.commit_number, 7);
  EXPECT_EQ(imported.applied_commits, 6);
  ASSERT_OK_AND_ASSIGN(const Snapshot snapshot, reader->Acquire({.min_commit = 7, .timeout = kLong}));
  EXPECT_THAT(ReadAll(snapshot, "w"), IsOkAndHolds(values));
}

TEST_F(ReadingTest, AReaderOutlivesModelsAndDaemons) {
  StartDaemon(1);
  ASSERT_OK_AND_ASSIGN(const auto reader, MakeReader());
  {
    ASSERT_OK_AND_ASSIGN(Client client, Connect());
    ASSERT_OK(client.CreateModel(ModelOfEqualValues()));
    ASSERT_OK_AND_ASSIGN(const Snapshot snapshot, reader->Acquire({.timeout = kLong}));
    ASSERT_OK(client.DeleteModel("m"));
    EXPECT_THAT(snapshot.Check(),
                StatusIs(absl::StatusCode::kAborted, HasSubstr("snapshot of m at commit 0: ended, the model or its")));
    EXPECT_THAT(reader->Acquire({.timeout = kForAnAnswer}).status(),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("not found")));
    ASSERT_OK(client.CreateModel(ModelOfEqualValues()));
  }
  ASSERT_OK_AND_ASSIGN(const Snapshot snapshot, reader->Acquire({.timeout = kLong}));
  ASSERT_OK_AND_ASSIGN(const std::vector<PlaneRows> mapped, snapshot.Map("w"));
  daemon_->Signal(SIGKILL);
  ASSERT_OK(daemon_->AwaitExit(kLong));
  EXPECT_THAT(snapshot.Check(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("has died")));
  std::vector<float> values(256 * 64);
  ASSERT_OK(mapped[0].matrix.Decode(values.data()));
  EXPECT_EQ(values.back(), 1.0f);
  EXPECT_THAT(reader->Acquire({.timeout = kForAnAnswer}).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("start paramshardd")));
  StartDaemon(1);
  ASSERT_OK_AND_ASSIGN(Client client, Connect());
  ASSERT_OK(client.CreateModel(ModelOfEqualValues()));
  ASSERT_OK_AND_ASSIGN(const Snapshot again, reader->Acquire({.timeout = kLong}));
  EXPECT_THAT(ReadAll(again, "w"), IsOkAndHolds(std::vector<float>(256 * 64, 1.0f)));
}

TEST_F(ReadingTest, RestoresImportsAndRollBacksEndSnapshotsAndWaits) {
  const test::TemporaryDirectory saves;
  const std::vector<std::string> flags = {"--keeper=off", "--save-dir=" + saves.path()};
  StartDaemon(1, flags);
  ASSERT_OK_AND_ASSIGN(Client client, Client::Connect({.socket_dir = directory_.path(), .accept_rollback = true}));
  const auto train = [&] {
    ASSERT_OK_AND_ASSIGN(Model model, client.OpenModel(ModelOfEqualValues()));
    ASSERT_OK(Step(model, 1.0f, "of a step"));
    ASSERT_OK(model.Detach());
  };
  train();
  ASSERT_OK(client.Save("m"));
  train();
  ASSERT_OK_AND_ASSIGN(const auto reader, MakeReader());
  ModelVersion before;
  // Returns the snapshot of the version at which the reader is to be, after the one before.
  const auto next = [&](int64_t commit, float value, absl::string_view data) -> absl::StatusOr<Snapshot> {
    ASSIGN_OR_RETURN(const ModelVersion newer, reader->WaitNewer(before, kLong));
    ASSIGN_OR_RETURN(Snapshot snapshot, reader->Acquire({.timeout = kLong}));
    EXPECT_EQ(snapshot.version(), newer);
    EXPECT_NE(newer.history_id, before.history_id);
    EXPECT_EQ(newer.commit_number, commit);
    EXPECT_EQ(snapshot.data(), data);
    EXPECT_THAT(ReadAll(snapshot, "w"), IsOkAndHolds(std::vector<float>(256 * 64, value)));
    before = newer;
    return snapshot;
  };
  const auto is_ended = [](int64_t from, int64_t to) {
    return StatusIs(absl::StatusCode::kAborted,
                    HasSubstr(absl::StrCat("snapshot of m at commit ", from, ": ended, the model is at commit ", to,
                                           " of another history now")));
  };
  ASSERT_OK_AND_ASSIGN(const Snapshot trained, next(2, 0.75f, "of a step"));
  ASSERT_OK(client.Restore("m", "latest"));
  EXPECT_THAT(trained.Check(), is_ended(2, 1));
  ASSERT_OK_AND_ASSIGN(const Snapshot restored, next(1, 0.875f, ""));
  const std::vector<float> values(256 * 64, 3.0f);
  ASSERT_OK(client.Import("m", {{.parameter = "w", .values = values}}, {.commit_number = 7, .version = 6}));
  EXPECT_THAT(restored.Check(), is_ended(1, 7));
  ASSERT_OK_AND_ASSIGN(const Snapshot imported, next(7, 3.0f, ""));
  // The next daemon goes back to the save.
  daemon_->Signal(SIGKILL);
  ASSERT_OK(daemon_->AwaitExit(kLong));
  EXPECT_THAT(imported.Check(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("has died")));
  StartDaemon(1, flags);
  ASSERT_OK(client.CreateModel(ModelOfEqualValues(), {.restore = "latest"}));
  EXPECT_OK(next(1, 0.875f, ""));
}

// Restores and imports in a loop beside a reader in a loop: what the reader takes for whole is one state's.
TEST_F(ReadingTest, NoReadIsTornByARestoreOrAnImport) {
  const test::TemporaryDirectory saves;
  StartDaemon(2, {"--save-dir=" + saves.path(), "--reader-hold=1ms"});
  ASSERT_OK_AND_ASSIGN(Client client, Connect());
  ASSERT_OK(client.CreateModel(ModelOfEqualValues()));
  ASSERT_OK(client.Save("m"));  // of commit 0, with ones
  std::atomic<bool> done = false;
  std::thread changes([&] {
    for (int64_t round = 1; round <= 30; ++round) {
      const std::vector<float> values(256 * 64, static_cast<float>(round));
      EXPECT_OK(client.Import("m", {{.parameter = "w", .values = values}}, {.commit_number = round, .version = round}));
      EXPECT_OK(client.Restore("m", "latest"));
    }
    done = true;
  });
  ASSERT_OK_AND_ASSIGN(const auto reader, MakeReader());
  const int whole =
      ReadUntil(done, *reader, [](int64_t commit) { return commit == 0 ? 1.0f : static_cast<float>(commit); });
  changes.join();
  EXPECT_GT(whole, 0);
}

// Two daemons with a whole shard group each: a reader beside either one reads the same versions.
TEST_F(ReadingTest, ReadersBesideReplicasReadTheSame) {
  constexpr int kNodes = 2, kDevices = 2, kCommits = 20;
  const std::string address = absl::StrCat("--cluster-address=127.0.0.1:", test::FreePort());
  const std::vector<test::TemporaryDirectory> directories(kNodes);
  std::vector<test::DaemonProcess> daemons;
  for (int node = 0; node < kNodes; ++node) {
    daemons.push_back(test::DaemonProcess::Spawn(PARAMSHARDD, directories[node].path(),
                                                 {"--device=cpu:0", "--device=cpu:1", absl::StrCat("--nodes=", kNodes),
                                                  absl::StrCat("--node=", node), address}));
  }
  for (test::DaemonProcess& daemon : daemons) ASSERT_OK(daemon.AwaitReady(kLong));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kNodes * kDevices; ++rank) {
    threads.emplace_back([&, rank] {
      const auto train = [&](ModelSpec spec) -> absl::Status {
        ASSIGN_OR_RETURN(Client client,
                         Client::Connect({.rank = rank, .socket_dir = directories[rank / kDevices].path()}));
        ASSIGN_OR_RETURN(Model model, client.OpenModel(spec));
        for (int commit = 1; commit <= kCommits; ++commit) {
          RETURN_IF_ERROR(Step(model, -1.0f, absl::StrCat("step ", commit)).status());
        }
        return model.Detach();
      };
      EXPECT_OK(train(ModelOfEqualValues()));
    });
  }
  for (int node = 0; node < kNodes; ++node) {
    threads.emplace_back([&, node] {
      const auto read = [&]() -> absl::Status {
        ASSIGN_OR_RETURN(const auto reader, Reader::Create({.model = "m", .socket_dir = directories[node].path()}));
        for (int64_t commit = 0; commit < kCommits && !HasFailure();) {
          ASSIGN_OR_RETURN(const Snapshot snapshot, reader->Acquire({.min_commit = commit, .timeout = kLong}));
          commit = snapshot.version().commit_number;
          EXPECT_EQ(snapshot.data(), commit == 0 ? "" : absl::StrCat("step ", commit));
          const absl::StatusOr<std::vector<float>> values = ReadAll(snapshot, "w");
          if (absl::IsAborted(values.status())) continue;
          RETURN_IF_ERROR(values.status());
          EXPECT_EQ(*values, std::vector<float>(256 * 64, 1.0f + 0.125f * static_cast<float>(commit)));
          ++commit;
        }
        return absl::OkStatus();
      };
      EXPECT_OK(read());
    });
  }
  for (std::thread& thread : threads) thread.join();
  // A model that is cut over both daemons is whole beside neither.
  ASSERT_OK_AND_ASSIGN(Client client, Client::Connect({.socket_dir = directories[0].path()}));
  ModelSpec spans = ModelOfEqualValues();
  spans.name = "spans";
  spans.shard_size = kNodes * kDevices;
  ASSERT_OK(client.CreateModel(spans));
  ASSERT_OK_AND_ASSIGN(const auto reader, Reader::Create({.model = "spans", .socket_dir = directories[0].path()}));
  EXPECT_THAT(reader->Acquire().status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("read spans: this daemon has ranks 0 to 1 of 4 that share the model")));
}

// A trainer in a loop beside a reader in a loop: what the reader takes for whole is the state of one commit.
TEST_F(ReadingTest, EveryReadIsOneCommitsState) {
  StartDaemon(2, {"--reader-hold=2ms"});
  constexpr int kCommits = 300;
  std::atomic<bool> trained = false;
  std::vector<std::thread> trainers;
  for (int rank = 0; rank < 2; ++rank) {
    trainers.emplace_back([&, rank] {
      const auto train = [&]() -> absl::Status {
        ASSIGN_OR_RETURN(Client client, Connect(rank));
        ASSIGN_OR_RETURN(Model model, client.OpenModel(ModelOfEqualValues()));
        for (int i = 0; i < kCommits; ++i) RETURN_IF_ERROR(Step(model, -1.0f).status());
        return absl::OkStatus();
      };
      EXPECT_OK(train());
      trained = true;
    });
  }
  ASSERT_OK_AND_ASSIGN(const auto reader, MakeReader());
  const int whole =
      ReadUntil(trained, *reader, [](int64_t commit) { return 1.0f + 0.125f * static_cast<float>(commit); });
  for (std::thread& trainer : trainers) trainer.join();
  EXPECT_GT(whole, 0);
  ASSERT_OK_AND_ASSIGN(const Snapshot last, reader->Acquire({.min_commit = kCommits, .timeout = kLong}));
  EXPECT_THAT(ReadAll(last, "w"), IsOkAndHolds(std::vector<float>(256 * 64, 1.0f + 0.125f * kCommits)));
}

}  // namespace
}  // namespace paramshard
