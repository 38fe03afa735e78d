// A small training whose every step is known: gradients, and which of them are absent, depend only on commit number and
// rank, so a run that was interrupted anywhere must end in the same bytes as an undisturbed run.
#ifndef PARAMSHARD_TESTS_FAULTS_TRAINING_H_
#define PARAMSHARD_TESTS_FAULTS_TRAINING_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/client.h"

namespace paramshard::test {

// Where a trainer can be in a step.
enum class Point : int {
  kStart,       // nothing issued yet
  kGathering,   // a gather issued, not waited for
  kHolding,     // a unit gathered and held
  kReleased,    // every unit released
  kMistaken,    // gradients pushed that are to be discarded
  kDiscarded,   // discard issued
  kFilling,     // a gradient slot held and half written
  kPushed,      // one unit's gradients pushed, the other's not
  kAllPushed,   // all pushed, no commit yet
  kCommitting,  // commit issued, not answered
  kCommitted,   // commit answered
};
inline constexpr int kPointCount = 11;

// Returns a small model with `rows_factor` times the rows; `scaled`: with parameters whose formats need the amax of the
// whole tensor.
ModelSpec SmallModel(const std::string& name, int64_t rows_factor = 1, bool scaled = false);

// How many devices of the tests' kind this machine has, `most` at most: as many cpu devices as one likes.
int DevicesUpTo(int most);
// --device of one of several daemons that stand for machines, which share GPUs where there are too few.
std::string DeviceFlagOf(int node);

struct Training {
  std::string socket_dir;
  std::string model;
  int64_t rows_factor = 1;
  bool scaled = false;  // SmallModel
  int rank = 0;
  std::optional<int> shard_size = std::nullopt;
  GradientType accumulators = GradientType::kFP32;
  // BF16 gradients, and pushes_per_step = 1. The gradients are exact in BF16, so the bytes stay the same.
  bool pushes_once = false;
  int64_t commits = 6;  // train until this commit number
  // Checkpoint that the model begins with if this trainer creates it: CreationOptions::restore.
  std::string restore = {};
  // Any set of ranks that take part adds up to the same gradients, so the bytes are the same for any history of
  // memberships. For replicas, whose gradients are averaged.
  bool elastic = false;
  // Push other gradients first, in every step, and discard them: the bytes stay the same.
  bool mistakes = true;
  // Ranks run different units, in another order each: in most steps each leaves out one. For ranks of one daemon.
  bool differs = false;
  // Called when the model is open.
  std::function<void(const Model&)> opened = [](const Model&) {};
  // Called at every point of every step with the number of the commit that the step makes.
  std::function<void(Point, int64_t)> at = [](Point, int64_t) {};
  // How long the client waits for a daemon that is started again: Client::Options::restart_timeout.
  absl::Duration restart_timeout = absl::ZeroDuration();
  // How long it waits for the other ranks: Client::Options::attach_timeout.
  absl::Duration attach_timeout = absl::Minutes(10);
  // Attach again when the epoch ends because another trainer has left, or was late.
  bool resume = true;
};

// Opens the model, and trains to the end in one epoch, as the client's options say.
absl::Status TrainEpoch(Client& client, const Training& training);
// Trains to the end; with `resume` an epoch's end is survived by attaching again.
absl::Status Train(const Training& training);

}  // namespace paramshard::test

#endif  // PARAMSHARD_TESTS_FAULTS_TRAINING_H_
