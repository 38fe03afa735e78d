// Frozen parameters, through client and daemon, on devices of the kind that PARAMSHARD_TEST_DEVICES says.
#ifdef PARAMSHARD_HAS_CUDA
#include <cuda_runtime.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#ifdef PARAMSHARD_HAS_CUDA
#include "client/cuda.h"
#endif
#include "gmock/gmock.h"
#include "kernels/base/status_macros.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"
#include "tests/support/every_format.h"
#include "tests/support/status_matchers.h"

namespace paramshard {
namespace {

using ::testing::AllOf;
using ::testing::Combine;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;
using ::testing::Values;
using ::testing::ValuesIn;

constexpr int64_t kFrozenRows = 160;
constexpr int64_t kFrozenColumns = 96;

ParameterSpec Parameter(std::string name, std::vector<int64_t> shape, Format format) {
  return {.name = std::move(name),
          .shape = std::move(shape),
          .encoding = {.format = format},
          .initial_value = {Initializer::kNormal, 0.0f, 0.1f}};
}

// A model with an adapter: a frozen unit, and a unit that has frozen parameters with masters of both kinds beside the
// adapter. `trainable`: the same model with nothing frozen.
ModelSpec Adapted(const std::string& name, Format format, bool trainable) {
  ParameterSpec kept = Parameter("mixed.w", {kFrozenRows, kFrozenColumns}, format);
  kept.master_type = MasterType::kFP32;
  ParameterSpec pair = Parameter("mixed.pair", {40, kFrozenColumns}, Format::kBF16);
  pair.master_type = MasterType::kBF16Remainder;
  ModelSpec spec = {
      .name = name,
      .units = {{.name = "base",
                 .parameters = {Parameter("base.w", {kFrozenRows, kFrozenColumns}, format),
                                Parameter("base.small", {5, 33}, format)}},
                {.name = "mixed",
                 .parameters = {kept, pair, Parameter("mixed.adapter", {16, kFrozenColumns}, Format::kFP32)}}},
      .small_parameter_bytes = 1500,
      .seed = 7};
  for (UnitSpec& unit : spec.units) {
    for (ParameterSpec& parameter : unit.parameters) {
      parameter.trainable = trainable || parameter.name == "mixed.adapter";
    }
  }
  return spec;
}

// Returns bytes from host memory, or from the GPU.
std::string Bytes(absl::Span<const uint8_t> bytes, int gpu) {
  if (gpu < 0) return std::string(bytes.begin(), bytes.end());
  std::string copy(bytes.size(), '\0');
#ifdef PARAMSHARD_HAS_CUDA
  EXPECT_EQ(cudaSetDevice(gpu), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(copy.data(), bytes.data(), bytes.size(), cudaMemcpyDefault), cudaSuccess);
#endif
  return copy;
}

bool HasDevices(int count) {
  if (test::TestDevices() != "cuda") return true;
  int gpus = 0;
#ifdef PARAMSHARD_HAS_CUDA
  if (cudaGetDeviceCount(&gpus) != cudaSuccess) gpus = 0;
#endif
  return gpus >= count;
}

// Ranks are threads of one process here: loading a kernel while another rank's stream waits would hold them all up.
const bool kKernelsAreLoadedAtStart = setenv("CUDA_MODULE_LOADING", "EAGER", 0) == 0;

// The bytes of every plane, by parameter and phase.
using Planes = std::map<std::pair<std::string, Phase>, std::string>;

using AwaitUnit = std::function<absl::Status(GatheredUnit& unit)>;
absl::Status AwaitOnHost(GatheredUnit& unit) { return unit.Wait(); }

absl::StatusOr<Planes> GatherAll(Model& model, const AwaitUnit& await = AwaitOnHost) {
  Planes planes;
  for (const UnitSpec& unit : model.spec().units) {
    for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
      absl::StatusOr<GatheredUnit> gathered = model.Gather(unit.name, phase);
      if (!gathered.ok()) return gathered.status();
      if (const absl::Status status = await(*gathered); !status.ok()) return status;
      for (const ParameterSpec& parameter : unit.parameters) {
        const absl::StatusOr<Matrix> matrix = gathered->Get(parameter.name);
        if (!matrix.ok()) return matrix.status();
        std::string& bytes = planes[{parameter.name, phase}];
        for (const auto span : {matrix->data, matrix->scales, matrix->amax}) bytes += Bytes(span, matrix->gpu);
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

// A daemon, and a client of it.
struct Served {
  test::TemporaryDirectory directory;
  std::optional<test::DaemonProcess> daemon;
  std::optional<Client> client;

  absl::Status Start(const std::vector<std::string>& flags) {
    ASSIGN_OR_RETURN(test::DaemonProcess started,
                     test::DaemonProcess::Start(test::Program(PARAMSHARDD), directory.path(), flags));
    daemon.emplace(std::move(started));
    ASSIGN_OR_RETURN(Client connected, Connect(0));
    client.emplace(std::move(connected));
    return absl::OkStatus();
  }
  absl::StatusOr<Client> Connect(int rank) const {
    return Client::Connect({.rank = rank, .socket_dir = directory.path(), .attach_timeout = absl::Seconds(20)});
  }
};

using DaemonMap = std::map<std::pair<std::string, int>, std::unique_ptr<Served>>;
DaemonMap& Daemons() {
  static auto* const daemons = new DaemonMap;
  return *daemons;
}

// One for all tests: on GPUs most of a short test's time would be its daemon's start. Null when it does not start.
Served* ServedBy(const std::string& kind, int ranks) {
  std::unique_ptr<Served>& served = Daemons()[{kind, ranks}];
  if (served != nullptr) return served.get();
  std::vector<std::string> flags;
  for (int rank = 0; rank < ranks; ++rank) flags.push_back(absl::StrCat("--device=", kind, ":", rank));
  auto started = std::make_unique<Served>();
  EXPECT_OK(started->Start(flags));
  if (started->client.has_value()) served = std::move(started);
  return served.get();
}

class DaemonsEnd : public testing::Environment {
 public:
  void TearDown() override { Daemons().clear(); }
};
const testing::Environment* const kDaemonsEnd = testing::AddGlobalTestEnvironment(new DaemonsEnd);

class FrozenTest : public testing::TestWithParam<std::tuple<Format, int>> {
 protected:
  void SetUp() override {
    if (!HasDevices(ranks_)) GTEST_SKIP() << ranks_ << " GPUs are needed";
    served_ = ServedBy(test::TestDevices(), ranks_);
    ASSERT_NE(served_, nullptr);
  }
  void TearDown() override {
    for (const auto& [kind, served] : Daemons()) {
      if (served == nullptr) continue;
      for (const ModelSpec& spec : {frozen_, twin_}) served->client->DeleteModel(spec.name).IgnoreError();
    }
  }

  // Trains every rank in a thread of its own.
  void Run(const Served& served, const ModelSpec& spec, const std::function<void(int rank, Model& model)>& train) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks_; ++rank) {
      threads.emplace_back([&, rank] {
        absl::StatusOr<Client> client = served.Connect(rank);
        ASSERT_OK(client);
        absl::StatusOr<Model> model = client->OpenModel(spec);
        ASSERT_OK(model);
        train(rank, *model);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void Run(const ModelSpec& spec, const std::function<void(int rank, Model& model)>& train) {
    Run(*served_, spec, train);
  }

  Planes PlanesOf(const Served& served, const ModelSpec& spec, const AwaitUnit& await = AwaitOnHost) {
    Planes planes;
    Run(served, spec, [&](int rank, Model& model) {
      absl::StatusOr<Planes> gathered = GatherAll(model, await);
      ASSERT_OK(gathered);
      if (rank == 0) planes = *std::move(gathered);
    });
    return planes;
  }
  Planes PlanesOf(const ModelSpec& spec) { return PlanesOf(*served_, spec); }

  // Pushes gradients of one value for the adapter.
  static absl::Status PushAdapter(Model& model, float value) {
    ASSIGN_OR_RETURN(UnitGradients gradients, model.Gradients("mixed"));
    ASSIGN_OR_RETURN(const GradientView view, gradients.Get("mixed.adapter"));
    RETURN_IF_ERROR(view.Write(std::vector<float>(16 * kFrozenColumns, value)));
    return gradients.Push();
  }

  const Format format_ = std::get<0>(GetParam());
  const int ranks_ = std::get<1>(GetParam());
  const ModelSpec frozen_ = Adapted("frozen", format_, /*trainable=*/false);
  const ModelSpec twin_ = Adapted("twin", format_, /*trainable=*/true);

  Served* served_ = nullptr;
};

TEST_P(FrozenTest, PlanesAreThoseOfATrainableParameter) { EXPECT_EQ(PlanesOf(frozen_), PlanesOf(twin_)); }

TEST_P(FrozenTest, CommitsAndDiscardsLeaveFrozenParametersAlone) {
  Run(frozen_, [&](int, Model& model) {
    absl::StatusOr<Planes> before = GatherAll(model);
    ASSERT_OK(before);
    for (int step = 1; step <= 2; ++step) {
      // A discarded push leaves nothing, neither in the sums nor in the norm.
      ASSERT_OK(PushAdapter(model, 50.0f));
      ASSERT_OK(model.Discard());
      ASSERT_OK(PushAdapter(model, 1.0f));
      absl::StatusOr<PendingCommit> commit = model.Commit({.learning_rate = 0.1f});
      ASSERT_OK(commit);
      const absl::StatusOr<StepResult> result = commit->Wait();
      ASSERT_OK(result);
      EXPECT_EQ(result->version, step);
      // The mean of the ranks' gradients of the adapter alone.
      EXPECT_NEAR(result->gradient_norm, std::sqrt(16.0 * kFrozenColumns), 1e-6);
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
  ASSERT_OK(served_->client->CreateModel(frozen_));
  ASSERT_OK(served_->client->CreateModel(twin_));
  ASSERT_OK_AND_ASSIGN(const Exported masters, ExportAll(*served_->client, "frozen", {TensorKind::kMaster}));
  ASSERT_OK_AND_ASSIGN(const Exported twins, ExportAll(*served_->client, "twin", {TensorKind::kMaster}));
  const auto master = [](const std::string& name) { return std::pair(name, TensorKind::kMaster); };
  EXPECT_EQ(masters.at(master("mixed.w")), twins.at(master("mixed.w")));
  std::vector<float> decoded(kFrozenRows * kFrozenColumns);
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
                       ExportAll(*served_->client, "frozen", {std::begin(kStoredState), std::end(kStoredState)}));
  std::vector<std::pair<std::string, TensorKind>> kinds;
  for (const auto& [key, values] : stored) kinds.push_back(key);
  EXPECT_THAT(kinds, UnorderedElementsAre(Pair("mixed.w", TensorKind::kMasterElements),
                                          Pair("mixed.pair", TensorKind::kMasterElements),
                                          Pair("mixed.pair", TensorKind::kMasterRemainders),
                                          Pair("mixed.adapter", TensorKind::kMasterElements),
                                          Pair("mixed.adapter", TensorKind::kExpAvgElements),
                                          Pair("mixed.adapter", TensorKind::kExpAvgSqElements)));
}

TEST_P(FrozenTest, ImportedMastersBecomePlanes) {
  ASSERT_OK(served_->client->CreateModel(frozen_));
  ASSERT_OK(served_->client->CreateModel(twin_));
  std::vector<float> values(kFrozenRows * kFrozenColumns);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
  const std::vector<ImportTensor> tensors = {{.parameter = "base.w", .values = values},
                                             {.parameter = "mixed.w", .values = values}};
  for (const char* model : {"frozen", "twin"}) ASSERT_OK(served_->client->Import(model, tensors));
  EXPECT_EQ(PlanesOf(frozen_), PlanesOf(twin_));
  // In slices too; and others stay as they are.
  const absl::Span<const float> all = values;
  for (float& value : values) value = -2.0f * value;
  const std::vector<ImportTensor> slices = {
      {.parameter = "base.w", .values = all.subspan(0, 50 * kFrozenColumns), .rows = 50},
      {.parameter = "base.w", .values = all.subspan(50 * kFrozenColumns), .first_row = 50}};
  for (const char* model : {"frozen", "twin"}) ASSERT_OK(served_->client->Import(model, slices));
  EXPECT_EQ(PlanesOf(frozen_), PlanesOf(twin_));
}

TEST_P(FrozenTest, ImportsThatAFrozenParameterHasNoPlaceForAreRefused) {
  ASSERT_OK(served_->client->CreateModel(frozen_));
  const Planes before = PlanesOf(frozen_);
  const std::vector<float> values(kFrozenRows * kFrozenColumns, 1.0f);
  const absl::Span<const float> part = absl::MakeConstSpan(values).subspan(0, 30 * kFrozenColumns);
  EXPECT_THAT(served_->client->Import("frozen", {{.parameter = "base.w", .values = part, .rows = 30}}),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("base.w"), HasSubstr("frozen"))));
  EXPECT_THAT(
      served_->client->Import("frozen", {{.parameter = "base.w", .kind = TensorKind::kExpAvg, .values = values}}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has no exp_avg")));
  EXPECT_THAT(served_->client->Import("frozen",
                                      {{.parameter = "base.w", .kind = TensorKind::kMasterElements, .values = values}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has no master elements")));
  EXPECT_EQ(PlanesOf(frozen_), before);
}

// docs/reference/numerics.md says what of a parameter without a master comes back.
TEST_P(FrozenTest, WhatIsExportedComesBackAsThoseValues) {
  ASSERT_OK(served_->client->CreateModel(frozen_));
  const Planes before = PlanesOf(frozen_);
  ASSERT_OK_AND_ASSIGN(const Exported values, ExportAll(*served_->client, "frozen", {TensorKind::kMaster}));
  std::vector<ImportTensor> tensors;
  for (const auto& [key, master] : values) tensors.push_back({.parameter = key.first, .values = master});
  ASSERT_OK(served_->client->Import("frozen", tensors));
  ASSERT_OK_AND_ASSIGN(const Exported again, ExportAll(*served_->client, "frozen", {TensorKind::kMaster}));
  for (const auto& [key, master] : values) {
    const bool is_exact = format_ != Format::kNVFP4_2D || key.first.rfind("mixed", 0) == 0;
    for (size_t i = 0; i < master.size(); ++i) {
      ASSERT_NEAR(again.at(key)[i], master[i], is_exact ? 0 : std::ldexp(std::abs(master[i]), -22)) << key.first;
    }
  }
  const Planes after = PlanesOf(frozen_);
  const bool has_blocks_of_its_own = format_ == Format::kMXFP8 || format_ == Format::kNVFP4_2D;
  for (const auto& [key, bytes] : before) {
    if (has_blocks_of_its_own && key.first.rfind("base", 0) == 0) continue;
    EXPECT_TRUE(after.at(key) == bytes) << key.first << " in phase " << static_cast<int>(key.second);
  }
}

TEST_P(FrozenTest, GpusHoldTheBytesOfTheHost) {
  if (test::TestDevices() == "cpu") GTEST_SKIP() << "needs devices other than the host's";
  std::vector<float> values(kFrozenRows * kFrozenColumns);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
  Served* const host = ServedBy("cpu", ranks_);
  ASSERT_NE(host, nullptr);
  std::vector<Planes> begun, imported;
  std::vector<Exported> masters;
  for (Served* served : {host, served_}) {
    ASSERT_OK(served->client->CreateModel(frozen_));
    begun.push_back(PlanesOf(*served, frozen_));
    const absl::Span<const float> pair = absl::MakeConstSpan(values).subspan(0, 40 * kFrozenColumns);
    ASSERT_OK(served->client->Import("frozen", {{.parameter = "base.w", .values = values},
                                                {.parameter = "mixed.w", .values = values},
                                                {.parameter = "mixed.pair", .values = pair}}));
    imported.push_back(PlanesOf(*served, frozen_));
    ASSERT_OK_AND_ASSIGN(masters.emplace_back(), ExportAll(*served->client, "frozen", {TensorKind::kMaster}));
  }
  EXPECT_TRUE(begun[0] == begun[1]);
  EXPECT_TRUE(imported[0] == imported[1]);
  EXPECT_FALSE(begun[0] == imported[0]);
  EXPECT_EQ(masters[0], masters[1]);
}

#ifdef PARAMSHARD_HAS_CUDA
TEST_P(FrozenTest, PlanesAreTheSameOnStreams) {
  if (test::TestDevices() == "cpu") GTEST_SKIP() << "needs streams of a GPU";
  const Planes on_streams = PlanesOf(*served_, frozen_, [](GatheredUnit& unit) -> absl::Status {
    RETURN_IF_ERROR(cuda::WaitOn(unit, cudaStreamPerThread));
    const cudaError_t error = cudaStreamSynchronize(cudaStreamPerThread);
    return error == cudaSuccess ? absl::OkStatus() : absl::InternalError(cudaGetErrorString(error));
  });
  EXPECT_TRUE(on_streams == PlanesOf(frozen_));
}
#endif

INSTANTIATE_TEST_SUITE_P(FormatsAndRanks, FrozenTest, Combine(ValuesIn(EveryFormat()), Values(1, 2)),
                         [](const auto& info) {
                           return absl::StrCat(FormatName(std::get<0>(info.param)), "On", std::get<1>(info.param));
                         });

}  // namespace
}  // namespace paramshard
