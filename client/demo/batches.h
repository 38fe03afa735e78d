// The order in which a trainer sees its data, and its position in it.
#ifndef PARAMSHARD_CLIENT_DEMO_BATCHES_H_
#define PARAMSHARD_CLIENT_DEMO_BATCHES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace paramshard::demo {

// A trainer's position in its data. Every commit carries it: a trainer that starts again resumes from it.
struct TrainingPosition {
  int64_t step = 0;           // next step to train
  int64_t reported_step = 0;  // steps trained at the last report
  double loss_sum = 0;        // over this rank's predictions since then
  int64_t loss_count = 0;     // number of these predictions

  std::string ToJson() const;
  // INVALID_ARGUMENT for any other text.
  static absl::StatusOr<TrainingPosition> FromJson(const std::string& text);
};

// One rank's part of one global batch.
struct Batch {
  std::vector<int64_t> samples;  // may be empty
  int64_t global_samples = 0;    // of all ranks
};

// Batches of shuffled samples, epoch after epoch: a pure function of (seed, step), so that every rank, even after a
// restart, cuts the same global batches. The last batch of an epoch may be smaller.
class Batches {
 public:
  // Samples are numbered from 0 to `samples` - 1.
  Batches(int64_t samples, int64_t batch_size, uint64_t seed)
      : samples_(samples), batch_size_(batch_size), seed_(seed) {}

  int64_t batches_per_epoch() const { return (samples_ + batch_size_ - 1) / batch_size_; }
  // Rank r of n takes samples [size * r / n, size * (r + 1) / n) of the global batch.
  Batch Take(int64_t step, int rank, int world_size) const;

 private:
  std::vector<int64_t> Order(int64_t epoch) const;

  const int64_t samples_;
  const int64_t batch_size_;
  const uint64_t seed_;
};

}  // namespace paramshard::demo

#endif  // PARAMSHARD_CLIENT_DEMO_BATCHES_H_
