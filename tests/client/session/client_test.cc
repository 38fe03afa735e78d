// The client library against a real daemon.
#include "client/client.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/codec.h"
#include "kernels/formats/float8.h"
#include "kernels/optim/fused_step.h"
#include "kernels/optim/master_remainder.h"
#include "kernels/optim/moment.h"
#include "kernels/optim/optimizers.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/every_format.h"
#include "tests/support/process_counts.h"
#include "tests/support/status_matchers.h"

namespace paramshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int64_t kRows = 160;
constexpr int64_t kColumns = 96;

// Units "a" and "b", each with a matrix "a.w" in the format and a small FP32 vector "a.bias". Ranks share the rows of
// "a.w"; one owns "b.w".
ModelSpec TwoUnits(Format format) {
  ModelSpec spec;
  spec.name = "two";
  for (const char* name : {"a", "b"}) {
    ParameterSpec weight;
    weight.name = absl::StrCat(name, ".w");
    weight.shape = {kRows, kColumns};
    weight.encoding.format = format;
    weight.initial_value = {Initializer::kNormal, 0.0f, 0.1f};
    ParameterSpec bias;
    bias.name = absl::StrCat(name, ".bias");
    bias.shape = {kRows};
    bias.initial_value = {Initializer::kConstant, 0.25f};
    spec.units.push_back({.name = name, .parameters = {weight, bias}});
  }
  spec.units[1].parameters[0].placement = Placement::kOwned;
  spec.small_parameter_bytes = 1024;
  return spec;
}

std::vector<float> Decode(const Matrix& matrix) {
  std::vector<float> values(matrix.rows * matrix.columns);
  EXPECT_OK(matrix.Decode(values.data()));
  return values;
}

// Returns a parameter's values as a trainer reads them now.
absl::StatusOr<std::vector<float>> GatherAndDecode(Model& model, const std::string& unit, const std::string& parameter,
                                                   Phase phase = Phase::kForward) {
  ASSIGN_OR_RETURN(GatheredUnit gathered, model.Gather(unit, phase));
  RETURN_IF_ERROR(gathered.Wait());
  ASSIGN_OR_RETURN(const Matrix matrix, gathered.Get(parameter));
  return Decode(matrix);
}

absl::Status PushConstant(Model& model, const std::string& unit, float value) {
  ASSIGN_OR_RETURN(UnitGradients gradients, model.Gradients(unit));
  for (const char* suffix : {".w", ".bias"}) {
    ASSIGN_OR_RETURN(const GradientView view, gradients.Get(unit + suffix));
    std::fill(view.fp32().begin(), view.fp32().end(), value);
  }
  return gradients.Push();
}

class ClientTest : public testing::Test {
 protected:
  void StartDaemon(int devices) {
    std::vector<std::string> flags;
    for (int i = 0; i < devices; ++i) flags.push_back(absl::StrCat("--device=cpu:", i));
    absl::StatusOr<test::DaemonProcess> daemon = test::DaemonProcess::Start(PARAMSHARDD, directory_.path(), flags);
    ASSERT_OK(daemon);
    daemon_.emplace(*std::move(daemon));
  }

  absl::StatusOr<Client> Connect(int rank) {
    return Client::Connect({.rank = rank, .socket_dir = directory_.path(), .attach_timeout = absl::Seconds(20)});
  }

  // Opens the model on every rank at once and runs the trainer, a thread for each.
  void RunTrainers(int ranks, const ModelSpec& spec,
                   const std::function<absl::Status(int rank, Model& model)>& trainer) {
    std::vector<std::thread> threads;
    std::vector<absl::Status> statuses(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] { statuses[rank] = RunTrainer(rank, spec, trainer); });
    }
    for (std::thread& thread : threads) thread.join();
    for (int rank = 0; rank < ranks; ++rank) EXPECT_OK(statuses[rank]) << "rank " << rank;
  }

  absl::Status RunTrainer(int rank, const ModelSpec& spec,
                          const std::function<absl::Status(int rank, Model& model)>& trainer) {
    ASSIGN_OR_RETURN(Client client, Connect(rank));
    ASSIGN_OR_RETURN(Model model, client.OpenModel(spec));
    return trainer(rank, model);
  }

  const test::TemporaryDirectory directory_;
  std::optional<test::DaemonProcess> daemon_;
};

TEST_F(ClientTest, WithoutADaemonConnectSaysWhereItLooked) {
  EXPECT_THAT(Connect(0), StatusIs(absl::StatusCode::kUnavailable, HasSubstr(directory_.path())));
  EXPECT_THAT(Client::Connect({.rank = -1}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got -1")));
  EXPECT_THAT(Client::Connect({.connect_timeout = absl::ZeroDuration()}),
              StatusIs(absl::StatusCode::kInvalidArgument, "connect: want connect_timeout > 0, got 0"));
  EXPECT_THAT(Client::Connect({.attach_timeout = -absl::Seconds(5)}),
              StatusIs(absl::StatusCode::kInvalidArgument, "connect: want attach_timeout > 0, got -5s"));
}

TEST_F(ClientTest, ACreationThatIsNotAnsweredSaysSo) {
  StartDaemon(1);
  ASSERT_OK_AND_ASSIGN(Client client,
                       Client::Connect({.socket_dir = directory_.path(), .attach_timeout = absl::Milliseconds(10)}));
  daemon_->Pause();
  EXPECT_THAT(client.CreateModel(TwoUnits(Format::kFP32)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("create model two: timed out after attach_timeout (10ms)")));
}

// How long creations wait for each other, of several daemons, is said by the daemon.
TEST(ClientOptionsTest, AClientIsMorePatientThanADaemon) {
  ASSERT_OK_AND_ASSIGN(const std::string config, test::OutputOf(absl::StrCat(PARAMSHARDD, " --print-config")));
  const std::string name = "restore-timeout = ";
  ASSERT_THAT(config, HasSubstr(name));
  const std::string value = config.substr(config.find(name) + name.size());
  absl::Duration daemon;
  ASSERT_TRUE(absl::ParseDuration(value.substr(0, value.find(' ')), &daemon)) << value;
  // Node 0 waits up to half a minute longer for last words, and memory of a large model takes its time.
  EXPECT_GE(Client::Options().attach_timeout, daemon + absl::Minutes(2));
}

// One moment as it is stored, zeros at first.
struct ReferenceMoment {
  ReferenceMoment(MomentKind kind, MomentType type)
      : type(type), data(MomentBytes(type) * kRows * kColumns), scales(MomentScaleCount(type, kRows, kColumns)) {
    EncodeMoment(kind, std::vector<float>(kRows * kColumns).data(), kRows, kColumns, View());
  }

  MutableMoment View() { return {.data = data.data(), .scales = scales.data(), .type = type}; }

  MomentType type;
  std::vector<uint8_t> data;
  std::vector<float> scales;
};

// One parameter beside the daemon's: the same master, moments and planes, by the kernels directly, on the whole tensor.
struct Reference {
  Reference(const ParameterSpec& parameter, std::vector<float> initial)
      : encoding{*parameter.encoding.format, DefaultElement(*parameter.encoding.format),
                 DefaultPowerOfTwoScales(*parameter.encoding.format)},
        master_type(parameter.master_type.value_or(MasterType::kFP32)),
        master(std::move(initial)),
        exp_avg(MomentKind::kFirst, parameter.exp_avg_type.value_or(MomentType::kFP32)),
        exp_avg_sq(MomentKind::kSecond, parameter.exp_avg_sq_type.value_or(MomentType::kFP32)) {
    MeasureAmax();
    delayed_scale = E4M3::kMax / largest_amax;
  }

  // Planes of FP8_TENSOR_DELAYED have the scale of the amaxes before this step's.
  void Step(const OptimizerStep& step, const std::vector<float>& gradients) {
    delayed_scale = E4M3::kMax / largest_amax;
    const OptimizerState state{.master = master.data(), .moments = {exp_avg.View(), exp_avg_sq.View()}};
    FusedStep(step, gradients.data(), state, kRows, kColumns, encoding, {}, {});
    MeasureAmax();
  }

  void MeasureAmax() {
    amax = Amax(master.data(), static_cast<int64_t>(master.size()));
    largest_amax = std::max(largest_amax, amax);
  }

  std::vector<float> Decoded(Plane plane) const {
    if (master_type == MasterType::kBF16Remainder) return UpperHalves();
    std::vector<uint8_t> data(DataBytes(encoding, kRows, kColumns)),
        scales(ScaleBytes(encoding, plane, kRows, kColumns)), plane_amax(AmaxBytes(encoding.format));
    const MutablePlane out{data.data(), scales.data(), plane_amax.data()};
    EncodePlanes(encoding, master.data(), kRows, kColumns, plane == Plane::kRowWise ? out : MutablePlane{},
                 plane == Plane::kRowWise ? MutablePlane{} : out, {.amax = amax, .scale = delayed_scale});
    std::vector<float> values(master.size());
    DecodePlane(encoding, plane, {data.data(), scales.data(), plane_amax.data()}, kRows, kColumns, values.data());
    return values;
  }

  std::vector<float> UpperHalves() const {
    std::vector<float> values;
    for (float value : master) values.push_back(Join({.weight = Split(value).weight, .remainder = 0}));
    return values;
  }

  Encoding encoding;
  MasterType master_type;
  std::vector<float> master;
  ReferenceMoment exp_avg, exp_avg_sq;
  float amax = 0.0f, largest_amax = 0.0f;
  float delayed_scale = 1.0f;
};

// Multiples of 2^-6 up to 2, different everywhere: three times one of them, over three, is the same again.
std::vector<float> GradientValues(int64_t step) {
  std::mt19937 random(step);
  std::vector<float> values(kRows * kColumns);
  for (float& value : values) value = (static_cast<float>(random() % 257) - 128.0f) / 64.0f;
  return values;
}

// The mean over ranks is `values`, exactly: rank 0 pushes the whole sum.
absl::Status PushMean(Model& model, const std::string& unit, const std::vector<float>& values) {
  ASSIGN_OR_RETURN(UnitGradients gradients, model.Gradients(unit));
  ASSIGN_OR_RETURN(const GradientView view, gradients.Get(unit + ".w"));
  const float factor = model.rank() == 0 ? static_cast<float>(model.world_size()) : 0.0f;
  std::transform(values.begin(), values.end(), view.fp32().begin(), [&](float value) { return value * factor; });
  return gradients.Push();
}

// Returns the mean as accumulators hold it: BF16 accumulators round the sum.
std::vector<float> MeanOfAccumulators(const Model& model, std::vector<float> values) {
  if (model.spec().accumulator_type == GradientType::kFP32) return values;
  const auto ranks = static_cast<float>(model.world_size());
  for (float& value : values) value = DecodeBFloat16(EncodeBFloat16(value * ranks)) * (1.0f / ranks);
  return values;
}

class StepsTest : public ClientTest {
 protected:
  // Four steps of "a.w", and what every rank gathers before each.
  void ExpectStepsOfTheKernels(int ranks, const ModelSpec& spec) {
    StartDaemon(ranks);
    if (HasFatalFailure()) return;
    const ParameterSpec& weight = spec.units[0].parameters[0];
    RunTrainers(ranks, spec, [&](int, Model& model) -> absl::Status {
      std::vector<float> initial(kRows * kColumns);
      FillInitialValues(weight.initial_value, spec.seed, 0, 0, kRows * kColumns, initial.data());
      Reference reference(weight, std::move(initial));
      for (int64_t step = 1; step <= 4; ++step) {
        RETURN_IF_ERROR(ExpectGathered(model, reference, step));
        RETURN_IF_ERROR(TakeStep(model, reference, step));
      }
      return absl::OkStatus();
    });
  }

 private:
  static absl::Status ExpectGathered(Model& model, const Reference& reference, int64_t step) {
    const Plane backward = HasColumnPlane(reference.encoding.format) ? Plane::kColumnWise : Plane::kRowWise;
    ASSIGN_OR_RETURN(const std::vector<float> rows, GatherAndDecode(model, "a", "a.w"));
    EXPECT_TRUE(rows == reference.Decoded(Plane::kRowWise)) << "rank " << model.rank() << " step " << step;
    ASSIGN_OR_RETURN(const std::vector<float> columns, GatherAndDecode(model, "a", "a.w", Phase::kBackward));
    EXPECT_TRUE(columns == reference.Decoded(backward)) << "rank " << model.rank() << " step " << step;
    return absl::OkStatus();
  }

  static absl::Status TakeStep(Model& model, Reference& reference, int64_t step) {
    RETURN_IF_ERROR(PushMean(model, "a", GradientValues(step)));
    RETURN_IF_ERROR(PushConstant(model, "b", 1.0f));
    ASSIGN_OR_RETURN(PendingCommit commit, model.Commit({.learning_rate = 0.01f,
                                                         .weight_decay = 0.1f,
                                                         .momentum = 0.9f,
                                                         .dampening = 0.25f,
                                                         .client_state = absl::StrCat("after ", step)}));
    ASSIGN_OR_RETURN(const StepResult result, commit.Wait());
    EXPECT_EQ(result.version, step);
    EXPECT_FALSE(result.skipped);
    const Hyperparameters values = {.learning_rate = 0.01f, .weight_decay = 0.1f, .momentum = 0.9f, .dampening = 0.25f};
    const OptimizerStep expected =
        MakeStep(model.spec().groups[0].optimizer, values, /*bias_correction=*/true, step, /*gradient_scale=*/1.0f);
    reference.Step(expected, MeanOfAccumulators(model, GradientValues(step)));
    return absl::OkStatus();
  }
};

class FormatsAndRanksTest : public StepsTest, public testing::WithParamInterface<std::tuple<Format, int>> {};

TEST_P(FormatsAndRanksTest, StepsAreThoseOfTheKernels) {
  const auto [format, ranks] = GetParam();
  ExpectStepsOfTheKernels(ranks, TwoUnits(format));
}

INSTANTIATE_TEST_SUITE_P(All, FormatsAndRanksTest,
                         testing::Combine(testing::ValuesIn(EveryFormat()), testing::Values(1, 2, 3)),
                         [](const auto& info) {
                           return absl::StrCat(FormatName(std::get<0>(info.param)), "On", std::get<1>(info.param));
                         });

// The matrix of the test, as five experts that have owners.
class OwnersTest : public FormatsAndRanksTest {};

TEST_P(OwnersTest, StepsAreThoseOfTheKernels) {
  const auto [format, ranks] = GetParam();
  ModelSpec spec = TwoUnits(format);
  ParameterSpec& experts = spec.units[0].parameters[0];
  experts.shape = {5, kRows / 5, kColumns};
  experts.placement = Placement::kOwned;
  ExpectStepsOfTheKernels(ranks, spec);
}

INSTANTIATE_TEST_SUITE_P(All, OwnersTest,
                         testing::Combine(testing::ValuesIn(EveryFormat()), testing::Values(1, 2, 3, 5)),
                         [](const auto& info) {
                           return absl::StrCat(FormatName(std::get<0>(info.param)), "On", std::get<1>(info.param));
                         });

TEST_F(StepsTest, ARankThatOwnsNothingGathersWhatTheOwnerHasTrained) {
  ModelSpec spec;
  spec.name = "one";
  spec.small_parameter_bytes = 0;
  spec.units = {{.name = "a",
                 .parameters = {{.name = "a.w",
                                 .shape = {kRows, kColumns},
                                 .initial_value = {Initializer::kConstant, 1.0f},
                                 .placement = Placement::kOwned}}}};
  StartDaemon(3);
  RunTrainers(3, spec, [&](int, Model& model) -> absl::Status {
    for (int64_t step = 1; step <= 2; ++step) {
      RETURN_IF_ERROR(PushMean(model, "a", std::vector<float>(kRows * kColumns, 1.0f)));
      ASSIGN_OR_RETURN(PendingCommit commit, model.Commit({.learning_rate = 0.5f}));
      RETURN_IF_ERROR(commit.Wait().status());
      ASSIGN_OR_RETURN(const std::vector<float> weights, GatherAndDecode(model, "a", "a.w"));
      EXPECT_THAT(weights, testing::Each(testing::FloatNear(1.0f - 0.5f * static_cast<float>(step), 1e-6f)));
    }
    return absl::OkStatus();
  });
}

// Optimizers that a fused step is all of.
std::vector<OptimizerTraits> ElementwiseOptimizers() {
  std::vector<OptimizerTraits> optimizers;
  for (const OptimizerTraits& traits : kOptimizers) {
    if (!IsMuon(traits.optimizer)) optimizers.push_back(traits);
  }
  return optimizers;
}

class OptimizersTest : public StepsTest, public testing::WithParamInterface<std::tuple<OptimizerTraits, int>> {};

TEST_P(OptimizersTest, StepsAreThoseOfTheKernels) {
  ModelSpec spec = TwoUnits(Format::kMXFP8);
  const auto& [optimizer, ranks] = GetParam();
  spec.groups = {{.optimizer = optimizer.optimizer}};
  ExpectStepsOfTheKernels(ranks, spec);
}

INSTANTIATE_TEST_SUITE_P(All, OptimizersTest,
                         testing::Combine(testing::ValuesIn(ElementwiseOptimizers()), testing::Values(1, 2, 3, 5)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param).name, "On", std::get<1>(info.param));
                         });

class MomentsTest : public StepsTest, public testing::WithParamInterface<MomentType> {};

TEST_P(MomentsTest, StepsAreThoseOfTheKernels) {
  ModelSpec spec = TwoUnits(Format::kFP32);
  ParameterSpec& weight = spec.units[0].parameters[0];
  weight.exp_avg_type = weight.exp_avg_sq_type = GetParam();
  ExpectStepsOfTheKernels(2, spec);
}

INSTANTIATE_TEST_SUITE_P(InBlocks, MomentsTest, testing::Values(MomentType::kFP16, MomentType::kFP8));

TEST_F(StepsTest, MastersWithARemainderLoseNothing) {
  ModelSpec spec = TwoUnits(Format::kBF16);
  spec.units[0].parameters[0].master_type = MasterType::kBF16Remainder;
  ExpectStepsOfTheKernels(2, spec);
}

// In every sum over three ranks something is rounded.
class AccumulatorsTest : public StepsTest, public testing::WithParamInterface<std::tuple<GradientSums, int>> {};

TEST_P(AccumulatorsTest, StepsAreThoseOfRoundedSums) {
  const auto [sums, ranks] = GetParam();
  ModelSpec spec = TwoUnits(Format::kMXFP8);
  spec.gradient_sums = sums;
  spec.accumulator_type = GradientType::kBF16;
  ExpectStepsOfTheKernels(ranks, spec);
}

INSTANTIATE_TEST_SUITE_P(OfBF16, AccumulatorsTest,
                         testing::Combine(testing::Values(GradientSums::kAtCommit, GradientSums::kAtPush),
                                          testing::Values(1, 3)));

// Says so by the type of accumulators, or by number.
class SecondPushTest : public ClientTest, public testing::WithParamInterface<bool> {};

INSTANTIATE_TEST_SUITE_P(, SecondPushTest, testing::Bool());

TEST_P(SecondPushTest, IsRefusedAndNothingIsLost) {
  StartDaemon(2);
  ModelSpec spec = TwoUnits(Format::kFP32);
  if (GetParam()) spec.accumulator_type = GradientType::kBF16;
  if (!GetParam()) spec.pushes_per_step = 1;
  RunTrainers(2, spec, [](int, Model& model) -> absl::Status {
    RETURN_IF_ERROR(PushConstant(model, "a", 1.0f));
    ASSIGN_OR_RETURN(UnitGradients second, model.Gradients("a"));
    ASSIGN_OR_RETURN(const GradientView bias, second.Get("a.bias"));
    std::fill(bias.fp32().begin(), bias.fp32().end(), 3.0f);
    EXPECT_THAT(second.Push(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("push a: already pushed")));
    EXPECT_THAT(model.Commit({}), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("still held: a")));
    // The slot is as it was: after a discard it holds the first push.
    RETURN_IF_ERROR(model.Discard());
    EXPECT_EQ(bias.fp32()[0], 3.0f);
    RETURN_IF_ERROR(second.Push());
    ASSIGN_OR_RETURN(PendingCommit commit, model.Commit({}));
    ASSIGN_OR_RETURN(const StepResult result, commit.Wait());
    EXPECT_DOUBLE_EQ(result.gradient_norm, 3.0 * std::sqrt(static_cast<double>(kRows)));
    // A commit begins a step, before it is answered too.
    RETURN_IF_ERROR(PushConstant(model, "a", 1.0f));
    RETURN_IF_ERROR(model.Commit({}).status());
    RETURN_IF_ERROR(PushConstant(model, "a", 1.0f));
    ASSIGN_OR_RETURN(PendingCommit last, model.Commit({}));
    return last.Wait().status();
  });
}

// The scale_inv of "a.w" as it is gathered now.
absl::StatusOr<float> GatherScaleInv(Model& model) {
  ASSIGN_OR_RETURN(GatheredUnit gathered, model.Gather("a", Phase::kForward));
  RETURN_IF_ERROR(gathered.Wait());
  ASSIGN_OR_RETURN(const Matrix matrix, gathered.Get("a.w"));
  EXPECT_THAT(matrix.scales, SizeIs(sizeof(float)));
  float scale_inv = 0.0f;
  std::memcpy(&scale_inv, matrix.scales.data(), sizeof(scale_inv));
  return scale_inv;
}

// The scale is (448 * 2^-margin) / amax: of the initial master first, which the first step still uses, then of that
// step's.
TEST_F(ClientTest, DelayedScalesFollowTheAmaxOfTheStepBefore) {
  StartDaemon(2);
  ModelSpec spec = TwoUnits(Format::kFP8TensorDelayed);
  ParameterSpec& weight = spec.units[0].parameters[0];
  weight.initial_value = {Initializer::kConstant, 3.0f};
  weight.encoding.delayed_scaling =
      DelayedScaling::Options{.algorithm = DelayedScaling::Algorithm::kMostRecent, .margin = 1};
  RunTrainers(2, spec, [](int, Model& model) -> absl::Status {
    // A gradient of 1 takes lr * (1 / (1 + 1e-8)) = 1 off, twice.
    for (float amax : {3.0f, 3.0f, 2.0f}) {
      ASSIGN_OR_RETURN(const float scale_inv, GatherScaleInv(model));
      EXPECT_EQ(scale_inv, 1.0f / (224.0f / amax));
      RETURN_IF_ERROR(PushConstant(model, "a", 1.0f));
      ASSIGN_OR_RETURN(PendingCommit commit, model.Commit({.learning_rate = 1.0f}));
      RETURN_IF_ERROR(commit.Wait().status());
    }
    return absl::OkStatus();
  });
}

TEST_F(ClientTest, ResidentUnitsServeBothPhasesAtOnce) {
  StartDaemon(2);
  ModelSpec spec = TwoUnits(Format::kMXFP8);
  spec.units[1].reshard_after_forward = false;
  RunTrainers(2, spec, [](int, Model& model) -> absl::Status {
    ASSIGN_OR_RETURN(GatheredUnit unit, model.Gather("b", Phase::kBoth));
    EXPECT_THAT(unit.Get("b.w"), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("Wait")));
    RETURN_IF_ERROR(unit.Wait());
    ASSIGN_OR_RETURN(const Matrix rows, unit.Get("b.w"));
    ASSIGN_OR_RETURN(const Matrix columns, unit.Get("b.w", Plane::kColumnWise));
    EXPECT_EQ(rows.plane, Plane::kRowWise);
    EXPECT_EQ(columns.plane, Plane::kColumnWise);
    EXPECT_THAT(unit.Get("b.bias", Plane::kColumnWise),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("b.bias")));
    EXPECT_THAT(unit.Get("a.w"), StatusIs(absl::StatusCode::kNotFound));
    unit.Release();
    EXPECT_THAT(unit.Get("b.w"), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("released")));
    // No rank leaves before all ranks have looked.
    ASSIGN_OR_RETURN(PendingCommit commit, model.Commit({}));
    return commit.Wait().status();
  });
}

class GradientSumsTest : public ClientTest, public testing::WithParamInterface<GradientSums> {};

TEST_P(GradientSumsTest, GradientsOfOneStepAddUpAndAbsentOnesLeaveTheirParameterAlone) {
  StartDaemon(2);
  ModelSpec spec = TwoUnits(Format::kFP32);
  spec.gradient_sums = GetParam();
  RunTrainers(2, spec, [](int, Model& model) -> absl::Status {
    ASSIGN_OR_RETURN(const std::vector<float> before, GatherAndDecode(model, "a", "a.w"));
    for (float value : {1.0f, 2.0f}) {
      ASSIGN_OR_RETURN(UnitGradients gradients, model.Gradients("a"));
      ASSIGN_OR_RETURN(const GradientView bias, gradients.Get("a.bias"));
      std::fill(bias.fp32().begin(), bias.fp32().end(), value);
      RETURN_IF_ERROR(gradients.MarkAbsent("a.w"));
      EXPECT_THAT(gradients.MarkAbsent("b.w"), StatusIs(absl::StatusCode::kNotFound));
      RETURN_IF_ERROR(gradients.Push());
      EXPECT_THAT(gradients.Push(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("pushed")));
    }
    ASSIGN_OR_RETURN(PendingCommit commit, model.Commit({.learning_rate = 0.5f}));
    ASSIGN_OR_RETURN(const StepResult result, commit.Wait());
    // The mean of both ranks' sums: 3 in each of the bias's elements.
    EXPECT_DOUBLE_EQ(result.gradient_norm, 3.0 * std::sqrt(static_cast<double>(kRows)));
    ASSIGN_OR_RETURN(const std::vector<float> after, GatherAndDecode(model, "a", "a.w"));
    EXPECT_EQ(after, before);
    ASSIGN_OR_RETURN(const std::vector<float> bias, GatherAndDecode(model, "a", "a.bias"));
    EXPECT_NE(bias.front(), 0.25f);
    ASSIGN_OR_RETURN(PendingCommit last, model.Commit({}));
    return last.Wait().status();
  });
}

INSTANTIATE_TEST_SUITE_P(AtCommitAndAtPush, GradientSumsTest,
                         testing::Values(GradientSums::kAtCommit, GradientSums::kAtPush));

// Gradients of all magnitudes, so that another order of additions shows.
absl::Status PushRandom(Model& model, const std::string& unit, uint32_t seed) {
  ASSIGN_OR_RETURN(UnitGradients gradients, model.Gradients(unit));
  std::mt19937 random(seed);
  for (const char* suffix : {".w", ".bias"}) {
    ASSIGN_OR_RETURN(const GradientView view, gradients.Get(unit + suffix));
    for (float& value : view.fp32()) {
      value = std::ldexp(static_cast<float>(random() % 8191) - 4095.0f, static_cast<int>(random() % 30) - 25);
    }
  }
  return gradients.Push();
}

TEST_F(ClientTest, WhenGradientsAreSummedDoesNotChangeABit) {
  StartDaemon(3);
  std::map<GradientSums, std::vector<float>> weights;
  for (const GradientSums sums : {GradientSums::kAtCommit, GradientSums::kAtPush}) {
    ModelSpec spec = TwoUnits(Format::kFP32);
    spec.name = absl::StrCat("sums", static_cast<int>(sums));
    spec.gradient_sums = sums;
    RunTrainers(3, spec, [&](int rank, Model& model) -> absl::Status {
      uint32_t seed = 100 * rank;
      for (int step = 0; step < 3; ++step) {
        for (const char* unit : {"b", "a", "b", "b"}) RETURN_IF_ERROR(PushRandom(model, unit, ++seed));
        RETURN_IF_ERROR(model.Commit({.learning_rate = 0.01f}).status());
      }
      for (const char* unit : {"a", "b"}) {
        ASSIGN_OR_RETURN(const std::vector<float> seen, GatherAndDecode(model, unit, absl::StrCat(unit, ".w")));
        if (rank == 0) weights[sums].insert(weights[sums].end(), seen.begin(), seen.end());
      }
      ASSIGN_OR_RETURN(PendingCommit last, model.Commit({}));
      return last.Wait().status();
    });
  }
  EXPECT_FALSE(weights[GradientSums::kAtPush].empty());
  EXPECT_EQ(weights[GradientSums::kAtCommit], weights[GradientSums::kAtPush]);
}

TEST_F(ClientTest, WhenARankLeavesTheOthersAttachAgainFromItsLastCommit) {
  StartDaemon(2);
  const ModelSpec spec = TwoUnits(Format::kMXFP8);
  ASSERT_OK_AND_ASSIGN(Client first, Connect(0));
  absl::Status seen;
  std::thread stayer([&] {
    absl::StatusOr<Model> model = first.OpenModel(spec);
    ASSERT_OK(model);
    ASSERT_OK(PushConstant(*model, "a", 1.0f));
    absl::StatusOr<PendingCommit> commit = model->Commit({.client_state = "rank 0 was here"});
    ASSERT_OK(commit);
    ASSERT_OK(commit->Wait());
    // Rank 1 leaves: this commit cannot complete.
    absl::StatusOr<PendingCommit> last = model->Commit({});
    seen = last.ok() ? last->Wait().status() : last.status();
    // The old epoch's model is still there while the new one opens.
    absl::StatusOr<Model> again = first.OpenModel(spec);
    ASSERT_OK(again);
    EXPECT_EQ(again->commit_number(), 1);
    EXPECT_EQ(again->client_state(), "rank 0 was here");
    ASSERT_TRUE(again->last_result().has_value());
    EXPECT_EQ(again->last_result()->commit_number, 1);
    EXPECT_GT(again->epoch(), model->epoch());
  });
  EXPECT_OK(RunTrainer(1, spec, [](int, Model& model) -> absl::Status {
    RETURN_IF_ERROR(PushConstant(model, "a", 1.0f));
    ASSIGN_OR_RETURN(PendingCommit commit, model.Commit({.client_state = "and rank 1"}));
    RETURN_IF_ERROR(commit.Wait().status());
    return model.Detach();
  }));
  EXPECT_OK(RunTrainer(1, spec, [](int, Model& model) -> absl::Status {
    EXPECT_EQ(model.client_state(), "and rank 1");
    return absl::OkStatus();
  }));
  stayer.join();
  EXPECT_THAT(seen, StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 1")));
}

// Values are the same as if each rank pushed each unit, without the gradients that it does not have.
TEST_F(ClientTest, RanksThatRunDifferentUnitsTrainAsOne) {
  StartDaemon(3);
  const auto runs = [](int step, int rank, const std::string& unit) {
    return unit == "a" ? rank == step % 3 : rank != 2 && step != 1;
  };
  std::map<std::string, std::vector<float>> values[2];
  for (const bool all_push : {false, true}) {
    ModelSpec spec = TwoUnits(Format::kBF16);
    spec.name = all_push ? "all" : "own";
    RunTrainers(3, spec, [&](int rank, Model& model) -> absl::Status {
      for (int step = 0; step < 3; ++step) {
        for (const std::string unit : {"b", "a"}) {
          if (!all_push && !runs(step, rank, unit)) continue;
          RETURN_IF_ERROR(GatherAndDecode(model, unit, unit + ".w").status());
          ASSIGN_OR_RETURN(UnitGradients gradients, model.Gradients(unit));
          for (const char* suffix : {".w", ".bias"}) {
            if (!runs(step, rank, unit)) {
              RETURN_IF_ERROR(gradients.MarkAbsent(unit + suffix));
              continue;
            }
            ASSIGN_OR_RETURN(const GradientView view, gradients.Get(unit + suffix));
            for (size_t i = 0; i < view.fp32().size(); ++i) {
              view.fp32()[i] = std::sin(static_cast<float>(i + 7 * rank + 3 * step));
            }
          }
          RETURN_IF_ERROR(gradients.Push());
        }
        ASSIGN_OR_RETURN(PendingCommit commit, model.Commit({.max_grad_norm = 1.0f}));
        RETURN_IF_ERROR(commit.Wait().status());
      }
      if (rank != 1) return absl::OkStatus();
      for (const std::string unit : {"a", "b"}) {
        ASSIGN_OR_RETURN(values[all_push ? 1 : 0][unit], GatherAndDecode(model, unit, unit + ".w"));
      }
      return absl::OkStatus();
    });
  }
  EXPECT_EQ(values[0].size(), 2u);
  EXPECT_EQ(values[0], values[1]);
}

TEST_F(ClientTest, AStepThatFollowsTheFirstIsGatheredAhead) {
  StartDaemon(2);
  RunTrainers(2, TwoUnits(Format::kMXFP8), [](int, Model& model) -> absl::Status {
    int64_t first_step_bytes = 0;
    for (int step = 0; step < 3; ++step) {
      const int64_t before = model.gathered_bytes();
      for (const char* unit : {"a", "b", "a", "b"}) {
        RETURN_IF_ERROR(GatherAndDecode(model, unit, absl::StrCat(unit, ".w")).status());
      }
      if (step == 0) first_step_bytes = model.gathered_bytes();
      EXPECT_EQ(model.gathered_bytes() - before, first_step_bytes);
      ASSIGN_OR_RETURN(PendingCommit commit, model.Commit({}));
      RETURN_IF_ERROR(commit.Wait().status());
    }
    return absl::OkStatus();
  });
}

TEST_F(ClientTest, ASecondTrainerForARankIsRefused) {
  StartDaemon(1);
  const ModelSpec spec = TwoUnits(Format::kFP32);
  ASSERT_OK_AND_ASSIGN(Client client, Connect(0));
  ASSERT_OK_AND_ASSIGN(Model model, client.OpenModel(spec));
  EXPECT_THAT(client.OpenModel(spec), StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_THAT(client.DeleteModel("two"), StatusIs(absl::StatusCode::kFailedPrecondition));
  ASSERT_OK(model.Detach());
  EXPECT_OK(client.OpenModel(spec));
}

TEST_F(ClientTest, ImportedTensorsComeBackBitForBit) {
  StartDaemon(2);
  ASSERT_OK_AND_ASSIGN(Client client, Connect(0));
  ASSERT_OK(client.CreateModel(TwoUnits(Format::kMXFP8)));
  std::vector<float> master(kRows * kColumns), exp_avg(kRows * kColumns);
  for (size_t i = 0; i < master.size(); ++i) {
    master[i] = std::sin(static_cast<float>(i));
    exp_avg[i] = std::cos(static_cast<float>(i));
  }
  const std::vector<ImportTensor> tensors = {
      {.parameter = "b.w", .kind = TensorKind::kMaster, .values = master, .step = 12},
      {.parameter = "b.w", .kind = TensorKind::kExpAvg, .values = exp_avg}};
  ASSERT_OK(client.Import("two", tensors, {.commit_number = 9, .version = 8}));

  std::map<TensorKind, std::vector<float>> exported;
  ASSERT_OK_AND_ASSIGN(
      const ExportSummary summary,
      client.Export("two", {.parameters = {"b.w"}, .kinds = {TensorKind::kMaster, TensorKind::kExpAvg}},
                    [&](const ExportedExtent& extent) {
                      EXPECT_EQ(extent.parameter, "b.w");
                      EXPECT_THAT(extent.shape, ElementsAre(kRows, kColumns));
                      EXPECT_EQ(extent.step, 12);
                      std::vector<float>& values = exported[extent.kind];
                      EXPECT_EQ(static_cast<int64_t>(values.size()), extent.first_row * kColumns);
                      values.insert(values.end(), extent.values.begin(), extent.values.end());
                      return absl::OkStatus();
                    }));
  EXPECT_EQ(summary.version, 8);
  EXPECT_EQ(summary.commit_number, 9);
  EXPECT_EQ(exported[TensorKind::kMaster], master);
  EXPECT_EQ(exported[TensorKind::kExpAvg], exp_avg);
}

TEST_F(ClientTest, StoredStateComesBackBitForBit) {
  StartDaemon(2);
  ASSERT_OK_AND_ASSIGN(Client client, Connect(0));
  ModelSpec spec = TwoUnits(Format::kBF16);
  const MomentType types[] = {MomentType::kFP16, MomentType::kFP8};
  for (int i = 0; i < 2; ++i) {
    ParameterSpec& parameter = spec.units[i].parameters[0];
    parameter.exp_avg_type = types[i];
    parameter.exp_avg_sq_type = types[1 - i];
    parameter.master_type = MasterType::kBF16Remainder;
  }
  ASSERT_OK(client.CreateModel(spec));
  std::vector<float> moment(kRows * kColumns);
  for (size_t i = 0; i < moment.size(); ++i) moment[i] = std::cos(static_cast<float>(i)) + 1.5f;
  for (const char* name : {"a.w", "b.w"}) {
    ASSERT_OK(client.Import("two", {{.parameter = name, .kind = TensorKind::kExpAvg, .values = moment, .step = 4},
                                    {.parameter = name, .kind = TensorKind::kExpAvgSq, .values = moment}}));
  }
  const ExportOptions stored{.kinds = {std::begin(kStoredState), std::end(kStoredState)}};
  const auto export_all = [&](const std::string& model, std::vector<ExportedExtent>* extents) {
    return client.Export(model, stored, [&](const ExportedExtent& extent) {
      extents->push_back(extent);
      return absl::OkStatus();
    });
  };
  std::vector<ExportedExtent> extents;
  ASSERT_OK_AND_ASSIGN(const ExportSummary summary, export_all("two", &extents));

  spec.name = "again";
  spec.seed = 99;
  ASSERT_OK(client.CreateModel(spec));
  std::vector<ImportTensor> tensors;
  for (const ExportedExtent& extent : extents) {
    tensors.push_back({.parameter = extent.parameter,
                       .kind = extent.kind,
                       .type = extent.type,
                       .values = extent.values,
                       .bytes = extent.bytes,
                       .first_row = extent.first_row,
                       .rows = extent.rows,
                       .step = extent.step});
  }
  ASSERT_OK(client.Import("again", tensors, {.history_id = summary.history_id}));
  std::vector<ExportedExtent> again;
  ASSERT_OK_AND_ASSIGN(const ExportSummary summary_again, export_all("again", &again));
  EXPECT_EQ(summary_again.history_id, summary.history_id);
  ASSERT_EQ(again.size(), extents.size());
  for (size_t i = 0; i < extents.size(); ++i) {
    EXPECT_TRUE(again[i].values == extents[i].values && again[i].bytes == extents[i].bytes) << i;
    EXPECT_EQ(again[i].step, extents[i].step);
    EXPECT_FALSE(extents[i].values.empty() && extents[i].bytes.empty());
  }
}

TEST_F(ClientTest, ImportsThatDoNotFitTheModelAreRefusedBeforeTheyAreSent) {
  StartDaemon(1);
  ASSERT_OK_AND_ASSIGN(Client client, Connect(0));
  ASSERT_OK(client.CreateModel(TwoUnits(Format::kFP32)));
  const std::vector<float> values(10);
  EXPECT_THAT(client.Import("two", {{.parameter = "a.w", .values = values}}),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("15360 values"), HasSubstr("got 10"))));
  EXPECT_THAT(client.Import("two", {{.parameter = "c.w", .values = values}}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("c.w")));
  EXPECT_THAT(client.Import("three", {}), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(ClientTest, SlicesOfNarrowTypesAreImported) {
  StartDaemon(3);
  ASSERT_OK_AND_ASSIGN(Client client, Connect(0));
  ASSERT_OK(client.CreateModel(TwoUnits(Format::kBF16)));
  const std::vector<float> zeros(kRows * kColumns);
  const std::vector<uint16_t> twos(40 * kColumns, 0x4000), threes(10 * kColumns, 0x4200);
  ASSERT_OK(client.Import("two", {{.parameter = "a.w", .values = zeros}}));
  ASSERT_OK(client.Import(
      "two", {{.parameter = "a.w", .type = TensorType::kBF16, .bits = twos, .first_row = kRows - 40},
              {.parameter = "a.w", .type = TensorType::kFP16, .bits = threes, .first_row = 50, .rows = 10}}));
  std::vector<float> values;
  ASSERT_OK(client.Export("two", {.parameters = {"a.w"}}, [&](const ExportedExtent& extent) {
    values.insert(values.end(), extent.values.begin(), extent.values.end());
    return absl::OkStatus();
  }));
  ASSERT_THAT(values, SizeIs(kRows * kColumns));
  for (int64_t row = 0; row < kRows; ++row) {
    const float expected = row >= kRows - 40 ? 2.0f : row >= 50 && row < 60 ? 3.0f : 0.0f;
    ASSERT_EQ(values[row * kColumns + 5], expected) << row;
  }
}

TEST_F(ClientTest, SlicesThatDoNotFitAreRefusedBeforeTheyAreSent) {
  StartDaemon(1);
  ASSERT_OK_AND_ASSIGN(Client client, Connect(0));
  ASSERT_OK(client.CreateModel(TwoUnits(Format::kFP32)));
  const std::vector<float> values(kColumns);
  const std::vector<uint16_t> bits(kColumns);
  const auto expect_refused = [&](const ImportTensor& tensor, const std::string& message) {
    EXPECT_THAT(client.Import("two", {tensor}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  expect_refused({.parameter = "a.w", .values = values, .first_row = kRows}, "want rows of [0, 160), got");
  expect_refused({.parameter = "a.w", .values = values, .first_row = -1, .rows = 1}, "want rows of [0, 160), got");
  expect_refused({.parameter = "a.w", .values = values, .first_row = 159, .rows = 2}, "want rows of [0, 160), got");
  expect_refused({.parameter = "a.w", .values = values, .rows = 0}, "want rows of [0, 160), got");
  expect_refused({.parameter = "a.w", .values = values, .rows = 2}, "want 192 values, got 96");
  expect_refused({.parameter = "a.w", .type = TensorType::kBF16, .values = values, .rows = 1},
                 "want the elements in one field: bits");
  expect_refused({.parameter = "a.w", .bits = bits, .rows = 1}, "want the elements in one field: values");
  expect_refused({.parameter = "a.w", .type = static_cast<TensorType>(9), .values = values, .rows = 1},
                 "unknown tensor type 9");
}

TEST_F(ClientTest, FormatsComeFromRules) {
  StartDaemon(1);
  ModelSpec spec = TwoUnits(Format::kFP32);
  for (UnitSpec& unit : spec.units) {
    for (ParameterSpec& parameter : unit.parameters) parameter.encoding = {};
  }
  spec.format_rules = {{.pattern = "b.w", .encoding = {.format = Format::kBF16}},
                       {.pattern = "*.w", .encoding = {.format = Format::kMXFP8, .element = ElementType::kE5M2}},
                       {.pattern = "*", .encoding = {.format = Format::kFP32}}};
  RunTrainers(1, spec, [](int, Model& model) -> absl::Status {
    EXPECT_EQ(model.spec().units[1].parameters[0].encoding.format, Format::kBF16);
    EXPECT_THAT(model.spec().format_rules, SizeIs(0));
    ASSIGN_OR_RETURN(GatheredUnit unit, model.Gather("a", Phase::kForward));
    RETURN_IF_ERROR(unit.Wait());
    ASSIGN_OR_RETURN(const Matrix weight, unit.Get("a.w"));
    EXPECT_EQ(weight.encoding, (Encoding{Format::kMXFP8, ElementType::kE5M2, true}));
    ASSIGN_OR_RETURN(const Matrix bias, unit.Get("a.bias"));
    EXPECT_EQ(bias.encoding.format, Format::kFP32);
    return absl::OkStatus();
  });
}

// Each with the parameter and the reason, and nothing is there afterwards.
TEST_F(ClientTest, SpecsThatCannotBeAreRefused) {
  StartDaemon(1);
  ASSERT_OK_AND_ASSIGN(Client client, Connect(0));
  const auto expect_refused = [&](const std::function<void(ModelSpec&)>& change, const std::string& message) {
    ModelSpec spec = TwoUnits(Format::kMXFP8);
    change(spec);
    EXPECT_THAT(client.CreateModel(spec), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
    EXPECT_THAT(client.DeleteModel(spec.name), StatusIs(absl::StatusCode::kNotFound));
  };
  const auto weight = [](ModelSpec& spec) -> ParameterSpec& { return spec.units[0].parameters[0]; };
  expect_refused([&](ModelSpec& spec) { weight(spec).encoding.element = ElementType::kE2M1; },
                 "parameter a.w: want an element type of MXFP8, got E2M1");
  expect_refused(
      [&](ModelSpec& spec) {
        weight(spec).encoding = {.format = Format::kFP8TensorDelayed,
                                 .delayed_scaling = DelayedScaling::Options{.history_length = 0}};
      },
      "parameter a.w: delayed scaling: want a history length from 1 to 65536, got 0");
  expect_refused([&](ModelSpec& spec) { weight(spec).master_type = MasterType::kBF16Remainder; },
                 "parameter a.w: want format BF16 for a master of BF16_REMAINDER, got MXFP8");
  expect_refused(
      [](ModelSpec& spec) {
        spec.format_rules = {{"lm_head.*", {.format = Format::kBF16}}, {"*", {.format = Format::kFP32}}};
      },
      "format rule lm_head.* matches no parameter");
  expect_refused(
      [](ModelSpec& spec) {
        spec.format_rules = {{"*.w", {.format = Format::kBF16}}};
      },
      "parameter a.bias: want a format or a format rule that matches the name");
}

TEST_F(ClientTest, AnExportEndsWithItsSinksError) {
  StartDaemon(1);
  ASSERT_OK_AND_ASSIGN(Client client, Connect(0));
  ASSERT_OK(client.CreateModel(TwoUnits(Format::kFP32)));
  int calls = 0;
  const auto refuse = [&](const ExportedExtent&) { return ++calls, absl::ResourceExhaustedError("the disk is full"); };
  EXPECT_THAT(client.Export("two", {}, refuse), StatusIs(absl::StatusCode::kResourceExhausted, "the disk is full"));
  EXPECT_EQ(calls, 1);
  EXPECT_THAT(client.Export("two", {.version = 5}, refuse), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(client.Export("two", {.parameters = {"c.w"}}, refuse), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(ClientTest, SessionsLeaveNoDescriptorAndNoThreadBehind) {
  StartDaemon(1);
  const ModelSpec spec = TwoUnits(Format::kFP32);
  ASSERT_OK_AND_ASSIGN(Client client, Connect(0));
  ASSERT_OK(client.OpenModel(spec));
  const int64_t descriptors = OpenDescriptors();
  const auto own_threads = [] { return OwnThreads(); };
  const int64_t threads = own_threads();
  for (int i = 0; i < 20; ++i) {
    ASSERT_OK_AND_ASSIGN(Model model, client.OpenModel(spec));
    // One background thread for a session; gRPC's own come and go.
    EXPECT_TRUE(SettlesWithin(threads + 1, own_threads));
  }
  EXPECT_TRUE(SettlesWithin(descriptors + 1, OpenDescriptors));
  EXPECT_TRUE(SettlesWithin(threads, own_threads));
}

}  // namespace
}  // namespace paramshard
