// Frozen parameters, through client and daemon.
#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "gmock/gmock.h"
#include "tests/every_format.h"
#include "tests/status_matchers.h"
#include "tests/support/daemon_process.h"

namespace paramshard {
namespace {

using ::testing::AllOf;
using ::testing::Combine;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;
using ::testing::Values;
using ::testing::ValuesIn;

constexpr int64_t kRows = 160;
constexpr int64_t kColumns = 96;

ParameterSpec Parameter(std::string name, std::vector<int64_t> shape, Format format) {
  return {.name = std::move(name),
          .shape = std::move(shape),
          .encoding = {.format = format},
          .initial_value = {Initializer::kNormal, 0.0f, 0.1f}};
}

// What an adapter is trained on: a unit that is frozen, and one that has a frozen parameter with a master beside the
// adapter. `trainable`: the same model with nothing frozen.
ModelSpec Adapted(const std::string& name, Format format, bool trainable) {
  ParameterSpec kept = Parameter("mixed.w", {kRows, kColumns}, format);
  kept.master_type = MasterType::kFP32;
  ModelSpec spec = {
      .name = name,
      .units = {{.name = "base",
                 .parameters = {Parameter("base.w", {kRows, kColumns}, format),
                                Parameter("base.small", {5, 33}, format)}},
                {.name = "mixed", .parameters = {kept, Parameter("mixed.adapter", {16, kColumns}, Format::kFP32)}}},
      .small_parameter_bytes = 1500,
      .seed = 7};
  for (UnitSpec& unit : spec.units) {
    for (ParameterSpec& parameter : unit.parameters) {
      parameter.trainable = trainable || parameter.name == "mixed.adapter";
    }
  }
  return spec;
}

std::string Bytes(absl::Span<const uint8_t> bytes) { return std::string(bytes.begin(), bytes.end()); }

// The bytes of every plane, by parameter and phase.
using Planes = std::map<std::pair<std::string, Phase>, std::string>;

absl::StatusOr<Planes> GatherAll(Model& model) {
  Planes planes;
  for (const UnitSpec& unit : model.spec().units) {
    for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
      absl::StatusOr<GatheredUnit> gathered = model.Gather(unit.name, phase);
      if (!gathered.ok()) return gathered.status();
      if (const absl::Status status = gathered->Wait(); !status.ok()) return status;
      for (const ParameterSpec& parameter : unit.parameters) {
        const absl::StatusOr<Matrix> matrix = gathered->Get(parameter.name);
        if (!matrix.ok()) return matrix.status();
        planes[{parameter.name, phase}] = absl::StrCat(Bytes(matrix->data), Bytes(matrix->scales), Bytes(matrix->amax));
      }
    }
  }
  return planes;
}

using Exported = std::map<std::pair<std::string, TensorKind>, std::vector<float>>;

absl::StatusOr<Exported> ExportAll(Client& client, const std::string& model, std::vector<TensorKind> kinds) {
  Exported exported;
  const absl::Status status = client
                                  .Export(model, {.kinds = std::move(kinds)},
                                          [&](const ExportedExtent& extent) {
                                            std::vector<float>& values = exported[{extent.parameter, extent.kind}];
                                            values.insert(values.end(), extent.values.begin(), extent.values.end());
                                            return absl::OkStatus();
                                          })
                                  .status();
  if (!status.ok()) return status;
  return exported;
}

class FrozenTest : public testing::TestWithParam<std::tuple<Format, int>> {
 protected:
  void SetUp() override {
    std::vector<std::string> flags;
    for (int rank = 0; rank < ranks_; ++rank) flags.push_back(absl::StrCat("--device=cpu:", rank));
    absl::StatusOr<test::DaemonProcess> daemon = test::DaemonProcess::Start(PARAMSHARDD, directory_.path(), flags);
    ASSERT_OK(daemon);
    daemon_.emplace(*std::move(daemon));
    absl::StatusOr<Client> client = Connect(0);
    ASSERT_OK(client);
    client_.emplace(*std::move(client));
  }

  absl::StatusOr<Client> Connect(int rank) {
    return Client::Connect({.rank = rank, .socket_dir = directory_.path(), .attach_timeout = absl::Seconds(20)});
  }

  // Trains every rank in a thread of its own.
  void Run(const ModelSpec& spec, const std::function<void(int rank, Model& model)>& train) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks_; ++rank) {
      threads.emplace_back([&, rank] {
        absl::StatusOr<Client> client = Connect(rank);
        ASSERT_OK(client);
        absl::StatusOr<Model> model = client->OpenModel(spec);
        ASSERT_OK(model);
        train(rank, *model);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  Planes PlanesOf(const ModelSpec& spec) {
    Planes planes;
    Run(spec, [&](int rank, Model& model) {
      absl::StatusOr<Planes> gathered = GatherAll(model);
      ASSERT_OK(gathered);
      if (rank == 0) planes = *std::move(gathered);
    });
    return planes;
  }

  const Format format_ = std::get<0>(GetParam());
  const int ranks_ = std::get<1>(GetParam());
  const ModelSpec frozen_ = Adapted("frozen", format_, /*trainable=*/false);
  const ModelSpec twin_ = Adapted("twin", format_, /*trainable=*/true);

  const test::TemporaryDirectory directory_;
  std::optional<test::DaemonProcess> daemon_;
  std::optional<Client> client_;
};

TEST_P(FrozenTest, PlanesAreThoseOfATrainableParameter) { EXPECT_EQ(PlanesOf(frozen_), PlanesOf(twin_)); }

TEST_P(FrozenTest, CommitsLeaveFrozenParametersAlone) {
  Run(frozen_, [&](int, Model& model) {
    absl::StatusOr<Planes> before = GatherAll(model);
    ASSERT_OK(before);
    for (int step = 1; step <= 2; ++step) {
      absl::StatusOr<UnitGradients> gradients = model.Gradients("mixed");
      ASSERT_OK(gradients);
      const absl::StatusOr<GradientView> view = gradients->Get("mixed.adapter");
      ASSERT_OK(view);
      std::fill(view->fp32().begin(), view->fp32().end(), 1.0f);
      ASSERT_OK(gradients->Push());
      absl::StatusOr<PendingCommit> commit = model.Commit({.learning_rate = 0.1f});
      ASSERT_OK(commit);
      const absl::StatusOr<StepResult> result = commit->Wait();
      ASSERT_OK(result);
      EXPECT_EQ(result->version, step);
      // The mean of the ranks' gradients of the adapter alone.
      EXPECT_NEAR(result->gradient_norm, std::sqrt(16.0 * kColumns), 1e-6);
    }
    absl::StatusOr<Planes> after = GatherAll(model);
    ASSERT_OK(after);
    for (const auto& [key, bytes] : *after) {
      EXPECT_EQ(bytes == before->at(key), key.first != "mixed.adapter") << key.first;
    }
  });
}

TEST_P(FrozenTest, GradientsOfFrozenParametersAreRefusedByName) {
  Run(frozen_, [&](int, Model& model) {
    EXPECT_THAT(model.Gradients("base"), StatusIs(absl::StatusCode::kInvalidArgument,
                                                  AllOf(HasSubstr("gradients base: "), HasSubstr("frozen"))));
    absl::StatusOr<UnitGradients> gradients = model.Gradients("mixed");
    ASSERT_OK(gradients);
    EXPECT_THAT(gradients->Get("mixed.w"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("mixed.w")));
    EXPECT_THAT(gradients->MarkAbsent("mixed.w"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("mixed.w")));
    EXPECT_OK(gradients->MarkAbsent("mixed.adapter"));
  });
}

TEST_P(FrozenTest, ExportsGiveTheMasterOrWhatPlanesDecodeTo) {
  ASSERT_OK(client_->CreateModel(frozen_));
  ASSERT_OK(client_->CreateModel(twin_));
  ASSERT_OK_AND_ASSIGN(const Exported masters, ExportAll(*client_, "frozen", {TensorKind::kMaster}));
  ASSERT_OK_AND_ASSIGN(const Exported twins, ExportAll(*client_, "twin", {TensorKind::kMaster}));
  const auto master = [](const std::string& name) { return std::pair(name, TensorKind::kMaster); };
  EXPECT_EQ(masters.at(master("mixed.w")), twins.at(master("mixed.w")));
  std::vector<float> decoded(kRows * kColumns);
  Run(frozen_, [&](int rank, Model& model) {
    absl::StatusOr<GatheredUnit> unit = model.Gather("base", Phase::kForward);
    ASSERT_OK(unit);
    ASSERT_OK(unit->Wait());
    if (rank == 0) {
      ASSERT_OK(unit->Get("base.w")->Decode(decoded.data()));
    }
  });
  EXPECT_EQ(masters.at(master("base.w")), decoded);
  EXPECT_EQ(masters.at(master("base.w")) == twins.at(master("base.w")), format_ == Format::kFP32);

  // A state bit for bit has what a parameter stores: of frozen ones a master, where they have one.
  ASSERT_OK_AND_ASSIGN(const Exported stored,
                       ExportAll(*client_, "frozen", {std::begin(kStoredState), std::end(kStoredState)}));
  std::vector<std::pair<std::string, TensorKind>> kinds;
  for (const auto& [key, values] : stored) kinds.push_back(key);
  EXPECT_THAT(kinds, UnorderedElementsAre(Pair("mixed.w", TensorKind::kMasterElements),
                                          Pair("mixed.adapter", TensorKind::kMasterElements),
                                          Pair("mixed.adapter", TensorKind::kExpAvgElements),
                                          Pair("mixed.adapter", TensorKind::kExpAvgSqElements)));
}

TEST_P(FrozenTest, ImportedMastersBecomePlanes) {
  ASSERT_OK(client_->CreateModel(frozen_));
  ASSERT_OK(client_->CreateModel(twin_));
  std::vector<float> values(kRows * kColumns);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
  const std::vector<ImportTensor> tensors = {{.parameter = "base.w", .values = values},
                                             {.parameter = "mixed.w", .values = values}};
  for (const char* model : {"frozen", "twin"}) ASSERT_OK(client_->Import(model, tensors));
  EXPECT_EQ(PlanesOf(frozen_), PlanesOf(twin_));
  // In slices too; and others stay as they are.
  const absl::Span<const float> all = values;
  for (float& value : values) value = -2.0f * value;
  const std::vector<ImportTensor> slices = {
      {.parameter = "base.w", .values = all.subspan(0, 50 * kColumns), .rows = 50},
      {.parameter = "base.w", .values = all.subspan(50 * kColumns), .first_row = 50}};
  for (const char* model : {"frozen", "twin"}) ASSERT_OK(client_->Import(model, slices));
  EXPECT_EQ(PlanesOf(frozen_), PlanesOf(twin_));
}

TEST_P(FrozenTest, ImportsThatAFrozenParameterHasNoPlaceForAreRefused) {
  ASSERT_OK(client_->CreateModel(frozen_));
  const Planes before = PlanesOf(frozen_);
  const std::vector<float> values(kRows * kColumns, 1.0f);
  const absl::Span<const float> part = absl::MakeConstSpan(values).subspan(0, 30 * kColumns);
  EXPECT_THAT(client_->Import("frozen", {{.parameter = "base.w", .values = part, .rows = 30}}),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("base.w"), HasSubstr("frozen"))));
  EXPECT_THAT(client_->Import("frozen", {{.parameter = "base.w", .kind = TensorKind::kExpAvg, .values = values}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a parameter that has exp_avg expected")));
  EXPECT_THAT(
      client_->Import("frozen", {{.parameter = "base.w", .kind = TensorKind::kMasterElements, .values = values}}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a parameter that has master elements expected")));
  EXPECT_EQ(PlanesOf(frozen_), before);
}

INSTANTIATE_TEST_SUITE_P(FormatsAndRanks, FrozenTest, Combine(ValuesIn(EveryFormat()), Values(1, 2)),
                         [](const auto& info) {
                           return absl::StrCat(FormatName(std::get<0>(info.param)), "On", std::get<1>(info.param));
                         });

}  // namespace
}  // namespace paramshard
