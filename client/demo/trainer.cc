#include "client/demo/trainer.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/ctl/terminal_text.h"
#include "kernels/base/status_macros.h"

namespace paramshard::demo {
namespace {

constexpr float kWeightDecay = 0.01f;
constexpr float kMaxGradNorm = 1.0f;
constexpr float kLastLearningRate = 0.05f;  // of the first
constexpr absl::Duration kHoldTimeout = absl::Minutes(2);
constexpr absl::Duration kHoldInterval = absl::Milliseconds(1);
// Matrices are small: without this the daemon would keep each whole on one rank.
constexpr int64_t kSmallParameterBytes = 4096;

int64_t Elements(const ParameterSpec& parameter) {
  return std::accumulate(parameter.shape.begin(), parameter.shape.end(), int64_t{1}, std::multiplies<>());
}

int64_t Elements(const UnitSpec& unit) {
  int64_t elements = 0;
  for (const ParameterSpec& parameter : unit.parameters) elements += Elements(parameter);
  return elements;
}

// Returns a model of the task's units, stored as the options say.
ModelSpec MakeModel(const DigitsTask& task, const TrainerOptions& options) {
  ModelSpec spec;
  spec.name = options.model;
  spec.units = task.Units();
  SetStorage(options.storage, spec);
  spec.shard_size = options.shard_size;
  spec.small_parameter_bytes = kSmallParameterBytes;
  spec.gradient_reduction = options.gradient_reduction;
  spec.seed = options.seed;
  return spec;
}

}  // namespace

absl::StatusOr<Trainer> Trainer::Create(const TrainerOptions& options, TrainingReport* report) {
  Client::Options client_options = options.client;
  // Every attempt begins from the model's commit number, and reports a rollback.
  client_options.accept_rollback = true;
  ASSIGN_OR_RETURN(Client client, Client::Connect(client_options));
  ASSIGN_OR_RETURN(DigitsTask task, DigitsTask::Create());
  return Trainer(options, std::move(client), std::move(task), report);
}

Trainer::Trainer(const TrainerOptions& options, Client client, DigitsTask task, TrainingReport* report)
    : options_(options),
      client_(std::move(client)),
      task_(std::move(task)),
      report_(report),
      spec_(MakeModel(task_, options_)),
      batches_(task_.training_samples(), options.batch_size, options.seed) {}

absl::Status Trainer::Run() {
  while (true) {
    const absl::Status status = Attempt();
    pending_.reset();
    if (status.ok()) return status;
    // OpenModel has waited for the daemon.
    if (!attached_ && absl::IsUnavailable(status)) return status;
    const std::optional<absl::Duration> pause = retries_.Next(status);
    if (!pause.has_value()) return status;
    report_->Event("ended", {{"why", std::string(status.message())}});
    absl::SleepFor(*pause);
  }
}

absl::Status Trainer::Attempt() {
  attached_ = false;
  ASSIGN_OR_RETURN(Model model, client_.OpenModel(spec_));
  attached_ = true;
  return Train(model);
}

absl::Status Trainer::CheckModel(const Model& model) const {
  if (model.world_size() != options_.world_size.value_or(model.world_size())) {
    return absl::InvalidArgumentError(absl::StrCat("--world-size: want ", model.world_size(),
                                                   " (ranks of the daemon's world), got ", *options_.world_size));
  }
  // A model that came back with fewer commits was restored, and its client state has the position.
  if (model.commit_number() > 0 || last_commit_ == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "train ", options_.model, ": want the state of commit ", last_commit_,
      ", got commit 0: import the state, then start this trainer again; a daemon with --save-dir and --restore=latest "
      "restores its latest checkpoint itself"));
}

void Trainer::ReportRollback(const Model& model) const {
  if (model.commit_number() >= last_commit_) return;
  std::cerr << "train " << ctl::TerminalText(options_.model) << ": model was rolled back from commit " << last_commit_
            << " to commit " << model.commit_number() << "; the training continues from there" << std::endl;
  report_->Event("rolled back", {{"from_commit_number", last_commit_}, {"commit_number", model.commit_number()}});
}

// Every step makes one commit, and the end of a training makes one more.
absl::StatusOr<TrainingPosition> Trainer::PositionIn(const Model& model) const {
  if (!model.client_state().empty()) return TrainingPosition::FromJson(model.client_state());
  const int64_t step = std::min(options_.start_step.value_or(model.commit_number()), total_steps());
  return TrainingPosition{.step = step,
                          .reported_step = step == total_steps() ? step : step / report_interval() * report_interval()};
}

absl::Status Trainer::Train(Model& model) {
  RETURN_IF_ERROR(CheckModel(model));
  ReportRollback(model);
  committed_ = false;
  last_commit_ = model.commit_number();
  next_commit_ = last_commit_ + 1;
  ASSIGN_OR_RETURN(position_, PositionIn(model));
  report_->Event("attached", {{"commit_number", model.commit_number()}, {"pid", getpid()}, {"step", position_.step}});
  if (position_.reported_step < total_steps()) {
    while (position_.reported_step < total_steps()) RETURN_IF_ERROR(TrainInterval(model));
    // A last commit without gradients tells that every rank has evaluated: from now on any rank may leave.
    RETURN_IF_ERROR(Commit(model, {.learning_rate = 0.0f}));
    RETURN_IF_ERROR(AwaitCommit());
  }
  report_->Event("finished", {{"commit_number", next_commit_ - 1}});
  return absl::OkStatus();
}

absl::Status Trainer::TrainInterval(Model& model) {
  // If the process before had a longer interval, this report may lie behind it already.
  const int64_t report_at = std::max(NextReport(), position_.step);
  const absl::Time begin = absl::Now();
  const int64_t bytes_before = model.gathered_bytes();
  cost_ = {.steps = report_at - position_.step};
  while (position_.step < report_at) RETURN_IF_ERROR(Step(model));
  RETURN_IF_ERROR(AwaitCommit());
  cost_.time = absl::Now() - begin;
  cost_.gathered_bytes = model.gathered_bytes() - bytes_before;
  RETURN_IF_ERROR(Report(model));
  position_ = {.step = report_at, .reported_step = report_at};
  return absl::OkStatus();
}

absl::Status Trainer::Step(Model& model) {
  const Batch batch = batches_.Take(position_.step, model.active_rank(), model.active_world_size());
  task_.SetTrainingSamples(batch.samples);
  RETURN_IF_ERROR(Forward(model));
  const Score score = task_.Loss(LossScale(model, batch));
  position_.loss_sum += score.loss;
  position_.loss_count += score.count;
  RETURN_IF_ERROR(BackwardAndPush(model, next_commit_));
  // Takes the rate of this step before the position moves on to the next step, which the commit stores.
  const float learning_rate = LearningRate();
  ++position_.step;
  return Commit(model, {.learning_rate = learning_rate, .weight_decay = kWeightDecay, .max_grad_norm = kMaxGradNorm});
}

// Weighs each sample by its share of the global batch, even if ranks have different numbers of samples.
float Trainer::LossScale(const Model& model, const Batch& batch) const {
  const float share = 1.0f / static_cast<float>(batch.global_samples);
  const bool is_averaged = options_.gradient_reduction == GradientReduction::kMean;
  return is_averaged ? share * static_cast<float>(model.active_world_size()) : share;
}

absl::Status Trainer::Load(Model& model, const UnitSpec& unit, Phase phase) {
  ASSIGN_OR_RETURN(GatheredUnit gathered, model.Gather(unit.name, phase));
  RETURN_IF_ERROR(gathered.Wait());
  weights_.resize(unit.parameters.size());
  for (size_t i = 0; i < weights_.size(); ++i) {
    ASSIGN_OR_RETURN(const Matrix matrix, gathered.Get(unit.parameters[i].name));
    weights_[i].resize(matrix.rows * matrix.columns);
    RETURN_IF_ERROR(matrix.Decode(weights_[i].data()));
  }
  return absl::OkStatus();
}

absl::Status Trainer::Forward(Model& model) {
  for (size_t unit = 0; unit < spec_.units.size(); ++unit) {
    RETURN_IF_ERROR(Load(model, spec_.units[unit], Phase::kForward));
    task_.Forward(static_cast<int>(unit), weights_);
  }
  return absl::OkStatus();
}

absl::Status Trainer::BackwardAndPush(Model& model, int64_t commit_number) {
  for (int unit = static_cast<int>(spec_.units.size()) - 1; unit >= 0; --unit) {
    const UnitSpec& spec = spec_.units[unit];
    gradients_.resize(spec.parameters.size());
    for (size_t i = 0; i < gradients_.size(); ++i) gradients_[i].resize(Elements(spec.parameters[i]));
    if (unit > 0) RETURN_IF_ERROR(Load(model, spec, Phase::kBackward));
    task_.Backward(unit, weights_, gradients_);
    RETURN_IF_ERROR(Push(model, spec));
    if (options_.kill_at_step == commit_number) {
      report_->Event("kill", {{"commit_number", commit_number}});
      raise(SIGKILL);
    }
    if (options_.hold_at_step == commit_number) RETURN_IF_ERROR(Hold(model));
  }
  return absl::OkStatus();
}

absl::Status Trainer::Hold(const Model& model) {
  options_.hold_at_step.reset();
  report_->Event("holding", {{"commit_number", next_commit_}});
  for (const absl::Time deadline = absl::Now() + kHoldTimeout; model.status().ok() && absl::Now() < deadline;) {
    absl::SleepFor(kHoldInterval);
  }
  if (!model.status().ok()) return model.status();
  return absl::InternalError(absl::StrCat("--hold-at-step: timed out after ", absl::FormatDuration(kHoldTimeout),
                                          ", the epoch has not ended"));
}

absl::Status Trainer::Push(Model& model, const UnitSpec& unit) {
  ASSIGN_OR_RETURN(UnitGradients gradients, model.Gradients(unit.name));
  for (size_t i = 0; i < gradients_.size(); ++i) {
    ASSIGN_OR_RETURN(const GradientView view, gradients.Get(unit.parameters[i].name));
    RETURN_IF_ERROR(view.Write(gradients_[i]));
  }
  return gradients.Push();
}

absl::Status Trainer::Commit(Model& model, CommitOptions options) {
  RETURN_IF_ERROR(AwaitCommit());
  options.client_state = position_.ToJson();
  ASSIGN_OR_RETURN(pending_, model.Commit(options));
  ++next_commit_;
  return absl::OkStatus();
}

absl::Status Trainer::AwaitCommit() {
  if (!pending_.has_value()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const StepResult result, pending_->Wait());
  pending_.reset();
  last_commit_ = result.commit_number;
  retries_.Reset();
  if (!std::exchange(committed_, true)) report_->Event("committed", {{"commit_number", result.commit_number}});
  if (!result.skipped) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("commit ", result.commit_number, ": want finite gradients, got ",
                                          result.non_finite_count, " elements that are not finite"));
}

absl::Status Trainer::Report(Model& model) {
  task_.SetHeldOutSamples();
  RETURN_IF_ERROR(Forward(model));
  const Score held_out = task_.Loss(/*scale=*/1.0f);
  const auto count = static_cast<double>(held_out.count);
  const int64_t steps = std::max<int64_t>(cost_.steps, 1);
  if (options_.client.rank == 0) {
    std::cout << absl::StrFormat("step %d of %d: held-out loss %.4f, accuracy %.1f%%", position_.step, total_steps(),
                                 held_out.loss / count, 100 * static_cast<double>(held_out.correct) / count)
              << std::endl;
  }
  report_->Progress({.step = position_.step,
                     .epoch = static_cast<double>(position_.step) / static_cast<double>(batches_.batches_per_epoch()),
                     .loss = position_.loss_sum / static_cast<double>(std::max<int64_t>(position_.loss_count, 1)),
                     .validation_loss = held_out.loss / count,
                     .accuracy = static_cast<double>(held_out.correct) / count,
                     .commit_number = next_commit_ - 1,
                     .gathered_bytes_per_step = cost_.gathered_bytes / steps,
                     .bf16_bytes_per_step = Bf16BytesPerStep(),
                     .steps_per_second = static_cast<double>(cost_.steps) / absl::ToDoubleSeconds(cost_.time)});
  return absl::OkStatus();
}

int64_t Trainer::NextReport() const {
  return std::min((position_.reported_step / report_interval() + 1) * report_interval(), total_steps());
}

float Trainer::LearningRate() const {
  const auto total = static_cast<float>(total_steps());
  const auto done = static_cast<float>(position_.step);
  return options_.learning_rate * (1.0f - (1.0f - kLastLearningRate) * done / total);
}

// A step gathers every unit for the forward pass and all but the first for the backward pass.
int64_t Trainer::Bf16BytesPerStep() const {
  int64_t elements = 0;
  for (const UnitSpec& unit : spec_.units) elements += 2 * Elements(unit);
  return 2 * (elements - Elements(spec_.units.front()));
}

}  // namespace paramshard::demo
