// The smallest trainer: fits a vector of weights to samples by least squares, and goes on after a crash.
//
//   build/bin/paramshardd --device=cpu:0 --device=cpu:1 &
//   until build/bin/paramshardctl version; do sleep 1; done
//   build/bin/minimal_trainer 0 1000 &    # RANK STEPS [SOCKET_DIR]
//   build/bin/minimal_trainer 1 1000
//
// When a trainer is killed and started again, all go on from the last commit and end with the weights of a training
// without the kill.

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "client/client.h"

namespace {

constexpr int kInputs = 64;
constexpr int kSamples = 16;  // of a rank in a step
constexpr absl::Duration kAttachTimeout = absl::Minutes(10);

struct Batch {
  std::vector<float> inputs;   // kSamples x kInputs
  std::vector<float> targets;  // the sums of the inputs: the weights to find are all 1
};

// Every rank has its own samples in every step, and the same ones when the step is made again.
Batch MakeBatch(int64_t step, int rank) {
  std::mt19937 random(static_cast<uint32_t>(step * 1000 + rank));
  std::normal_distribution<float> normal;
  Batch batch{std::vector<float>(kSamples * kInputs), std::vector<float>(kSamples)};
  for (int i = 0; i < kSamples * kInputs; ++i) {
    batch.inputs[i] = normal(random);
    batch.targets[i / kInputs] += batch.inputs[i];
  }
  return batch;
}

// Returns the mean of the squared errors, and writes its gradient.
float LeastSquares(const Batch& batch, const std::vector<float>& weights, std::vector<float>& gradient) {
  float loss = 0.0f;
  std::fill(gradient.begin(), gradient.end(), 0.0f);
  for (int s = 0; s < kSamples; ++s) {
    const float* inputs = &batch.inputs[s * kInputs];
    float error = -batch.targets[s];
    for (int i = 0; i < kInputs; ++i) error += weights[i] * inputs[i];
    loss += error * error / kSamples;
    for (int i = 0; i < kInputs; ++i) gradient[i] += 2.0f * error * inputs[i] / kSamples;
  }
  return loss;
}

absl::Status Gather(paramshard::Model& model, std::vector<float>& weights) {
  absl::StatusOr<paramshard::GatheredUnit> unit = model.Gather("layer", paramshard::Phase::kForward);
  if (!unit.ok()) return unit.status();
  if (absl::Status status = unit->Wait(); !status.ok()) return status;
  const absl::StatusOr<paramshard::Matrix> matrix = unit->Get("layer.weight");
  if (!matrix.ok()) return matrix.status();
  return matrix->Decode(weights.data());
}  // releases the unit

absl::Status Push(paramshard::Model& model, const std::vector<float>& gradient) {
  absl::StatusOr<paramshard::UnitGradients> unit = model.Gradients("layer");
  if (!unit.ok()) return unit.status();
  const absl::StatusOr<paramshard::GradientView> view = unit->Get("layer.weight");
  if (!view.ok()) return view.status();
  if (absl::Status status = view->Write(gradient); !status.ok()) return status;
  return unit->Push();
}

// Every step makes one commit: their number is the position in the training.
absl::Status Train(paramshard::Model& model, int64_t steps) {
  std::cout << "at commit " << model.commit_number() << std::endl;
  std::vector<float> weights(kInputs), gradient(kInputs);
  for (int64_t step = model.commit_number() + 1; step <= steps; ++step) {
    if (absl::Status status = Gather(model, weights); !status.ok()) return status;
    const float loss = LeastSquares(MakeBatch(step, model.rank()), weights, gradient);
    if (absl::Status status = Push(model, gradient); !status.ok()) return status;
    // The daemon takes the mean of the ranks' gradients and makes a step of AdamW.
    absl::StatusOr<paramshard::PendingCommit> commit = model.Commit({.learning_rate = 1e-2f});
    if (!commit.ok()) return commit.status();
    if (const auto result = commit->Wait(); !result.ok()) return result.status();
    if (step % 100 == 0) std::cout << "commit " << step << ": loss " << loss << std::endl;
  }
  return absl::OkStatus();
}

// Creates the model or joins it, waits for the other ranks, and trains.
int Run(paramshard::Client& client, int64_t steps) {
  const paramshard::ModelSpec spec{
      .name = "minimal", .units = {{.name = "layer", .parameters = {{.name = "layer.weight", .shape = {kInputs}}}}}};
  while (true) {
    std::cout << "opening model minimal: waits up to " << kAttachTimeout << " for all ranks" << std::endl;
    absl::StatusOr<paramshard::Model> model = client.OpenModel(spec);
    const absl::Status status = model.ok() ? Train(*model, steps) : model.status();
    if (status.ok()) return 0;
    std::cerr << status << std::endl;
    // ABORTED: another trainer has left. UNAVAILABLE: the daemon has died; OpenModel waits for it to come back.
    if (!absl::IsAborted(status) && !(model.ok() && absl::IsUnavailable(status))) return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  int rank = 0;
  int64_t steps = 0;
  if (argc < 3 || argc > 4 || !absl::SimpleAtoi(argv[1], &rank) || !absl::SimpleAtoi(argv[2], &steps)) {
    std::cerr << "usage: minimal_trainer RANK STEPS [SOCKET_DIR]" << std::endl;
    return 2;
  }
  absl::StatusOr<paramshard::Client> client = paramshard::Client::Connect(
      {.rank = rank, .socket_dir = argc > 3 ? argv[3] : "", .attach_timeout = kAttachTimeout});
  if (client.ok()) return Run(*client, steps);
  std::cerr << client.status() << std::endl;
  return 1;
}
