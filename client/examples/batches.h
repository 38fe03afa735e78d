// The order in which a trainer sees its data, and where it is in it.
#ifndef PARAMSHARD_CLIENT_EXAMPLES_BATCHES_H_
#define PARAMSHARD_CLIENT_EXAMPLES_BATCHES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/examples/data_set.h"

namespace paramshard::examples {

// A trainer's place in its data, which travels in every commit: a trainer that starts again goes on
// from here.
struct TrainingPosition {
  int64_t epoch = 0;
  int64_t batch = 0;       // of the epoch, the next to train on
  double loss_sum = 0;     // of this rank's samples so far in the epoch
  int64_t loss_count = 0;  // of those samples

  std::string ToJson() const;
  // INVALID_ARGUMENT for any other text.
  static absl::StatusOr<TrainingPosition> FromJson(const std::string& text);
};

// One rank's part of one global batch.
struct Batch {
  std::vector<float> pixels;  // samples x kPixels; may be empty
  std::vector<int> labels;
  int64_t global_samples = 0;  // of all ranks
};

// Batches of shuffled samples: a pure function of (seed, epoch, batch), so that every rank, also
// one that starts again, cuts the same global batches. The last one of an epoch may be smaller.
class Batches {
 public:
  // `data` outlives the object.
  Batches(const DataSet* data, int64_t batch_size, uint64_t seed);

  int64_t batches_per_epoch() const;
  // Rank r of n takes samples [size * r / n, size * (r + 1) / n) of the global batch.
  Batch Take(int64_t epoch, int64_t batch, int rank, int world_size) const;

 private:
  std::vector<int64_t> Order(int64_t epoch) const;

  const DataSet* data_;
  const int64_t batch_size_;
  const uint64_t seed_;
};

}  // namespace paramshard::examples

#endif  // PARAMSHARD_CLIENT_EXAMPLES_BATCHES_H_
