#include "tests/faults/training.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "tests/support/child_process.h"
#include "tests/support/environment.h"

namespace paramshard::test {
namespace {

constexpr const char* kUnits[] = {"first", "second"};

ParameterSpec Parameter(const std::string& name, std::vector<int64_t> shape, Format format) {
  ParameterSpec spec;
  spec.name = name;
  spec.shape = std::move(shape);
  spec.encoding.format = format;
  spec.initial_value = {Initializer::kNormal, 0.0f, 0.02f};
  return spec;
}

// A matrix, or a stack of them, each of which lies whole on one rank.
ParameterSpec Owned(ParameterSpec spec) {
  spec.placement = Placement::kOwned;
  return spec;
}

std::vector<float> GradientOf(int64_t elements, int64_t commit, int rank, int salt) {
  std::vector<float> values(elements);
  for (int64_t i = 0; i < elements; ++i) {
    values[i] = static_cast<float>((i * 31 + commit * 7 + rank * 13 + salt) % 101 - 50) / 256.0f;
  }
  return values;
}

// In four of five steps gradients are absent: each on some ranks, and in every third step one of each unit on all.
bool IsAbsent(int64_t commit, int rank, int salt, bool elastic) {
  if (commit % 5 == 0) return false;
  if (commit % 3 == 0 && salt == 1) return true;
  if (elastic && rank == 0) return false;  // makes up for the others
  return (commit + rank + salt) % 2 == 0;
}

// Multiples of 1/256, so that sums of them are exact: the first rank makes up for what the others add.
std::vector<float> ElasticGradientOf(int64_t elements, int64_t commit, const Model& model, int salt) {
  constexpr int kTogether = 64;  // no rank
  const int rank = model.active_rank();
  if (rank > 0) return GradientOf(elements, commit, rank, salt);
  std::vector<float> values = GradientOf(elements, commit, kTogether, salt);
  for (int other = 1; other < model.active_world_size(); ++other) {
    if (IsAbsent(commit, other, salt, /*elastic=*/true)) continue;
    const std::vector<float> others = GradientOf(elements, commit, other, salt);
    for (int64_t i = 0; i < elements; ++i) values[i] -= others[i];
  }
  return values;
}

// The mean over n ranks of gradients that carry 1/n is their sum.
float GradientScaleOf(const Model& model, const Training& training) {
  return training.elastic ? 1.0f / static_cast<float>(model.active_world_size()) : 1.0f;
}

absl::Status Push(Model& model, const Training& training, const UnitSpec& unit, int64_t commit) {
  ASSIGN_OR_RETURN(UnitGradients gradients, model.Gradients(unit.name));
  int salt = 0;
  for (const ParameterSpec& parameter : unit.parameters) {
    ASSIGN_OR_RETURN(const GradientView view, gradients.Get(parameter.name));
    const int64_t elements = view.rows * view.columns;
    const int rank = training.elastic ? model.active_rank() : training.rank;
    if (IsAbsent(commit, rank, salt, training.elastic)) {
      // Nobody reads what is written there.
      RETURN_IF_ERROR(view.Write(std::vector<float>(elements, std::numeric_limits<float>::quiet_NaN())));
      RETURN_IF_ERROR(gradients.MarkAbsent(parameter.name));
    } else {
      RETURN_IF_ERROR(view.Write(training.elastic ? ElasticGradientOf(elements, commit, model, salt)
                                                  : GradientOf(elements, commit, rank, salt)));
    }
    ++salt;
    if (commit > 0) training.at(Point::kFilling, commit);
  }
  return gradients.Push();
}

// Returns true if the rank runs the unit of that index in the step. It runs one at least.
bool Runs(const Training& training, int unit, int64_t commit) {
  return !training.differs || (commit + training.rank) % 3 != unit;
}

absl::Status Step(Model& model, const Training& training, int64_t commit) {
  training.at(Point::kStart, commit);
  for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
    int index = 0;
    for (const char* name : kUnits) {
      if (!Runs(training, index++, commit)) continue;
      ASSIGN_OR_RETURN(GatheredUnit unit, model.Gather(name, phase));
      training.at(Point::kGathering, commit);
      RETURN_IF_ERROR(unit.Wait());
      training.at(Point::kHolding, commit);
    }
  }
  training.at(Point::kReleased, commit);
  if (training.mistakes) {
    if (Runs(training, 0, commit)) RETURN_IF_ERROR(Push(model, training, model.spec().units.front(), -commit));
    training.at(Point::kMistaken, commit);
    RETURN_IF_ERROR(model.Discard());
    training.at(Point::kDiscarded, commit);
  }
  const int units = static_cast<int>(model.spec().units.size());
  for (int i = 0; i < units; ++i) {
    const int unit = training.differs && training.rank % 2 == 1 ? units - 1 - i : i;
    if (Runs(training, unit, commit)) RETURN_IF_ERROR(Push(model, training, model.spec().units[unit], commit));
    training.at(i == units - 1 ? Point::kAllPushed : Point::kPushed, commit);
  }
  ASSIGN_OR_RETURN(PendingCommit pending, model.Commit({.learning_rate = 1e-2f,
                                                        .weight_decay = 0.1f,
                                                        .max_grad_norm = 1.0f,
                                                        .gradient_scale = GradientScaleOf(model, training),
                                                        .client_state = absl::StrCat("after ", commit)}));
  training.at(Point::kCommitting, commit);
  ASSIGN_OR_RETURN(const StepResult result, pending.Wait());
  training.at(Point::kCommitted, commit);
  if (result.commit_number == commit && !result.skipped) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("applied commit: want ", commit, ", got ", result.commit_number));
}

void PushOnce(ModelSpec& spec) {
  spec.pushes_per_step = 1;
  for (UnitSpec& unit : spec.units) {
    for (ParameterSpec& parameter : unit.parameters) parameter.gradient_type = GradientType::kBF16;
  }
}

}  // namespace

int DevicesUpTo(int most) {
  if (TestDevices() != "cuda") return most;
  const absl::StatusOr<std::string> gpus = OutputOf("nvidia-smi --list-gpus 2>/dev/null | wc -l");
  return gpus.ok() ? std::min(most, std::atoi(gpus->c_str())) : 0;
}

std::string DeviceFlagOf(int node) { return DeviceFlags(1, node % std::max(1, DevicesUpTo(node + 1)))[0]; }

ModelSpec SmallModel(const std::string& name, int64_t rows_factor, bool scaled) {
  ModelSpec spec;
  spec.name = name;
  spec.seed = 7;
  spec.small_parameter_bytes = 1024;
  UnitSpec first;
  first.name = kUnits[0];
  first.parameters = {Parameter("first.weight", {96 * rows_factor, 160}, Format::kMXFP8),
                      Parameter("first.bias", {96}, Format::kFP32),
                      Owned(Parameter("first.experts", {5, 32, 48}, Format::kMXFP8))};
  UnitSpec second;
  second.name = kUnits[1];
  second.parameters = {Parameter("second.weight", {300 * rows_factor, 64}, Format::kFP8Block128x128),
                       Parameter("second.scale", {}, Format::kBF16),
                       Owned(Parameter("second.owned", {60, 40}, Format::kBF16))};
  if (scaled) {
    first.parameters.push_back(Parameter("first.current", {70, 48}, Format::kFP8TensorCurrent));
    second.parameters.push_back(Parameter("second.delayed", {90, 32}, Format::kFP8TensorDelayed));
    second.parameters.push_back(Owned(Parameter("second.experts", {3, 16, 50}, Format::kNVFP4_2D)));
  }
  spec.units = {first, second};
  return spec;
}

absl::Status TrainEpoch(Client& client, const Training& training) {
  ModelSpec spec = SmallModel(training.model, training.rows_factor, training.scaled);
  spec.shard_size = training.shard_size;
  spec.accumulator_type = training.accumulators;
  if (training.pushes_once) PushOnce(spec);
  ASSIGN_OR_RETURN(Model model, client.OpenModel(spec, {.restore = training.restore}));
  training.opened(model);
  const int64_t done = model.commit_number();
  if (done > 0 && model.client_state() != absl::StrCat("after ", done)) {
    return absl::InternalError(
        absl::StrCat("client state: want the state of commit ", done, ", got ", model.client_state()));
  }
  for (int64_t commit = done + 1; commit <= training.commits; ++commit) RETURN_IF_ERROR(Step(model, training, commit));
  return absl::OkStatus();
}

absl::Status Train(const Training& training) {
  while (true) {
    ASSIGN_OR_RETURN(Client client, Client::Connect({.rank = training.rank,
                                                     .socket_dir = training.socket_dir,
                                                     .attach_timeout = training.attach_timeout,
                                                     .restart_timeout = training.restart_timeout,
                                                     .on_wait = [](absl::string_view) {}}));
    const absl::Status status = TrainEpoch(client, training);
    // The next epoch begins when all are attached again. After the last commit ranks leave.
    if (!training.resume || !(absl::IsAborted(status) || absl::IsDeadlineExceeded(status))) return status;
  }
}

}  // namespace paramshard::test
