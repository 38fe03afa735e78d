#include "client/examples/digits_trainer.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"

namespace paramshard::examples {
namespace {

constexpr int64_t kHidden = 512;
constexpr float kWeightDecay = 0.01f;
constexpr float kMaxGradNorm = 1.0f;
constexpr float kLastLearningRate = 0.05f;  // of the first
// Layers are small: without this the daemon would keep each whole on one rank.
constexpr int64_t kSmallParameterBytes = 4096;

std::vector<int64_t> Sizes() { return {kPixels, kHidden, kHidden, kClasses}; }

std::string UnitName(int layer) { return absl::StrCat("layer", layer); }
std::string WeightName(int layer) { return absl::StrCat(UnitName(layer), ".weight"); }
std::string BiasName(int layer) { return absl::StrCat(UnitName(layer), ".bias"); }

UnitSpec MakeUnit(int layer, int64_t inputs, int64_t outputs, Format format) {
  ParameterSpec weight;
  weight.name = WeightName(layer);
  weight.shape = {outputs, inputs};
  weight.encoding.format = format;
  weight.initial_value = {Initializer::kNormal, 0.0f, std::sqrt(2.0f / static_cast<float>(inputs))};
  ParameterSpec bias;
  bias.name = BiasName(layer);
  bias.shape = {outputs};
  return {.name = UnitName(layer), .parameters = {weight, bias}};
}

}  // namespace

ModelSpec MakeDigitsModel(const DigitsOptions& options) {
  ModelSpec spec;
  spec.name = options.model;
  const std::vector<int64_t> sizes = Sizes();
  for (size_t layer = 0; layer + 1 < sizes.size(); ++layer) {
    spec.units.push_back(MakeUnit(static_cast<int>(layer), sizes[layer], sizes[layer + 1], options.format));
  }
  spec.shard_size = options.shard_size;
  spec.small_parameter_bytes = kSmallParameterBytes;
  // Every rank pushes its samples' share of the mean.
  spec.gradient_reduction = GradientReduction::kSum;
  spec.seed = options.seed;
  return spec;
}

absl::StatusOr<DigitsTrainer> DigitsTrainer::Create(const DigitsOptions& options, TrainingReport* report) {
  ASSIGN_OR_RETURN(const DataSet all, LoadDigits());
  ASSIGN_OR_RETURN(Client client, Client::Connect(options.client));
  return DigitsTrainer(options, std::move(client), Split(all), report);
}

DigitsTrainer::DigitsTrainer(const DigitsOptions& options, Client client, TrainTest digits, TrainingReport* report)
    : options_(options), client_(std::move(client)), digits_(std::move(digits)), report_(report), network_(Sizes()) {}

absl::Status DigitsTrainer::Run() {
  while (true) {
    absl::StatusOr<Model> model = client_.OpenModel(MakeDigitsModel(options_));
    absl::Status status = model.status();
    if (status.ok()) status = Train(*model);
    pending_.reset();
    if (!absl::IsAborted(status)) return status;
    report_->Event("ended", {{"why", std::string(status.message())}});
  }
}

absl::Status DigitsTrainer::Train(Model& model) {
  position_ = {};
  cost_ = {};
  committed_ = false;
  next_commit_ = model.commit_number() + 1;
  if (model.commit_number() > 0) {
    ASSIGN_OR_RETURN(position_, TrainingPosition::FromJson(model.client_state()));
  }
  report_->Event("attached", {{"commit_number", model.commit_number()}, {"pid", getpid()}});
  if (position_.epoch < options_.epochs) {
    while (position_.epoch < options_.epochs) RETURN_IF_ERROR(TrainEpoch(model));
    // A last commit, without gradients, says that every rank has evaluated: now any of them may
    // leave.
    RETURN_IF_ERROR(Commit(model, {.learning_rate = 0.0f}));
    RETURN_IF_ERROR(AwaitCommit());
  }
  report_->Event("finished", {{"commit_number", next_commit_ - 1}});
  return absl::OkStatus();
}

absl::Status DigitsTrainer::TrainEpoch(Model& model) {
  const Batches batches(&digits_.train, options_.batch_size, options_.seed);
  const absl::Time begin = absl::Now();
  const int64_t bytes_before = model.gathered_bytes();
  while (position_.batch < batches.batches_per_epoch()) {
    RETURN_IF_ERROR(Step(model));
    ++cost_.steps;
  }
  RETURN_IF_ERROR(AwaitCommit());
  cost_.time = absl::Now() - begin;
  cost_.gathered_bytes = model.gathered_bytes() - bytes_before;
  RETURN_IF_ERROR(ReportEpoch(model));
  position_ = {.epoch = position_.epoch + 1};
  cost_ = {};
  return absl::OkStatus();
}

absl::Status DigitsTrainer::Step(Model& model) {
  const Batches batches(&digits_.train, options_.batch_size, options_.seed);
  const Batch batch = batches.Take(position_.epoch, position_.batch, model.rank(), model.world_size());
  network_.SetInput(batch.pixels);
  RETURN_IF_ERROR(Forward(model));
  position_.loss_sum += network_.Loss(batch.labels, 1.0f / static_cast<float>(batch.global_samples));
  position_.loss_count += static_cast<int64_t>(batch.labels.size());
  RETURN_IF_ERROR(BackwardAndPush(model, next_commit_));
  // The rate of this step; then the place that a trainer starts from if this commit is the last.
  const float learning_rate = LearningRate();
  ++position_.batch;
  return Commit(model, {.learning_rate = learning_rate, .weight_decay = kWeightDecay, .max_grad_norm = kMaxGradNorm});
}

absl::Status DigitsTrainer::LoadLayer(Model& model, int layer, Phase phase) {
  ASSIGN_OR_RETURN(GatheredUnit unit, model.Gather(UnitName(layer), phase));
  RETURN_IF_ERROR(unit.Wait());
  ASSIGN_OR_RETURN(const Matrix weight, unit.Get(WeightName(layer)));
  weight_.resize(weight.rows * weight.columns);
  RETURN_IF_ERROR(weight.Decode(weight_.data()));
  ASSIGN_OR_RETURN(const Matrix bias, unit.Get(BiasName(layer)));
  bias_.resize(bias.rows * bias.columns);
  RETURN_IF_ERROR(bias.Decode(bias_.data()));
  return absl::OkStatus();
}

absl::Status DigitsTrainer::Forward(Model& model) {
  for (int layer = 0; layer < network_.layers(); ++layer) {
    RETURN_IF_ERROR(LoadLayer(model, layer, Phase::kForward));
    network_.Forward(layer, weight_.data(), bias_.data());
  }
  return absl::OkStatus();
}

absl::Status DigitsTrainer::BackwardAndPush(Model& model, int64_t commit_number) {
  for (int layer = network_.layers() - 1; layer >= 0; --layer) {
    ASSIGN_OR_RETURN(UnitGradients gradients, model.Gradients(UnitName(layer)));
    ASSIGN_OR_RETURN(const GradientView weight, gradients.Get(WeightName(layer)));
    ASSIGN_OR_RETURN(const GradientView bias, gradients.Get(BiasName(layer)));
    weight_gradient_.resize(weight.rows * weight.columns);
    bias_gradient_.resize(bias.rows * bias.columns);
    network_.ParameterGradients(layer, weight_gradient_.data(), bias_gradient_.data());
    RETURN_IF_ERROR(weight.Write(weight_gradient_));
    RETURN_IF_ERROR(bias.Write(bias_gradient_));
    RETURN_IF_ERROR(gradients.Push());
    if (options_.kill_at_step == commit_number) {
      report_->Event("kill", {{"commit_number", commit_number}});
      raise(SIGKILL);
    }
    if (layer == 0) break;
    RETURN_IF_ERROR(LoadLayer(model, layer, Phase::kBackward));
    network_.Backward(layer, weight_.data());
  }
  return absl::OkStatus();
}

absl::Status DigitsTrainer::Commit(Model& model, CommitOptions options) {
  RETURN_IF_ERROR(AwaitCommit());
  options.client_state = position_.ToJson();
  ASSIGN_OR_RETURN(pending_, model.Commit(options));
  ++next_commit_;
  return absl::OkStatus();
}

absl::Status DigitsTrainer::AwaitCommit() {
  if (!pending_.has_value()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const StepResult result, pending_->Wait());
  pending_.reset();
  if (!std::exchange(committed_, true)) report_->Event("committed", {{"commit_number", result.commit_number}});
  if (!result.skipped) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("commit ", result.commit_number, ": finite gradients expected, got ",
                                          result.non_finite_count, " others"));
}

absl::StatusOr<double> DigitsTrainer::Evaluate(Model& model) {
  network_.SetInput(digits_.test.pixels);
  RETURN_IF_ERROR(Forward(model));
  return static_cast<double>(network_.CountCorrect(digits_.test.labels)) / static_cast<double>(digits_.test.size());
}

absl::Status DigitsTrainer::ReportEpoch(Model& model) {
  ASSIGN_OR_RETURN(const double accuracy, Evaluate(model));
  const int64_t steps = std::max<int64_t>(cost_.steps, 1);
  report_->Epoch({.epoch = position_.epoch + 1,
                  .loss = position_.loss_sum / static_cast<double>(std::max<int64_t>(position_.loss_count, 1)),
                  .accuracy = accuracy,
                  .commit_number = next_commit_ - 1,
                  .gathered_bytes_per_step = cost_.gathered_bytes / steps,
                  .bf16_bytes_per_step = Bf16BytesPerStep(),
                  .steps_per_second = static_cast<double>(cost_.steps) / absl::ToDoubleSeconds(cost_.time)});
  return absl::OkStatus();
}

float DigitsTrainer::LearningRate() const {
  const Batches batches(&digits_.train, options_.batch_size, options_.seed);
  const auto total = static_cast<float>(options_.epochs * batches.batches_per_epoch());
  const auto done = static_cast<float>(position_.epoch * batches.batches_per_epoch() + position_.batch);
  return options_.learning_rate * (1.0f - (1.0f - kLastLearningRate) * done / total);
}

// A step gathers every layer for the forward pass and all but the first for the backward pass.
int64_t DigitsTrainer::Bf16BytesPerStep() const {
  int64_t elements = 0;
  for (int layer = 0; layer < network_.layers(); ++layer) {
    const int64_t gathers = layer == 0 ? 1 : 2;
    elements += gathers * (network_.inputs(layer) + 1) * network_.outputs(layer);
  }
  return 2 * elements;
}

}  // namespace paramshard::examples
