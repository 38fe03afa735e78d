// A training whose weights are known at every commit: each element of a parameter is one number, which every format of
// the model has without rounding.
#ifndef PARAMSHARD_LAB_CAMPAIGN_READABLE_TRAINING_H_
#define PARAMSHARD_LAB_CAMPAIGN_READABLE_TRAINING_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/client.h"
#include "tests/support/child_process.h"

namespace paramshard::test {

// Numbers of a trainer's board, besides kAtCommit and kMayCommit of kept_server.h.
inline constexpr int kLongestCommitUs = 2;  // from the call to its answer
inline constexpr int kCommitsOver20Ms = 3;
inline constexpr int kEpochs = 4;

struct ReadableTraining {
  std::string socket_dir = {};
  std::string model = {};
  int life = 0;  // how often the model was created before; its values differ from those of other lives
  GradientSums gradient_sums = GradientSums::kAtPush;
  int rank = 0;
  int ranks = 2;           // a power of two: the mean of their gradients is exact
  int64_t large_rows = 0;  // of one more parameter of BF16, of 4 KiB each
  int64_t commits = 0;
};

// One parameter of each of FP32, BF16, FP8_BLOCK_128X128 and MXFP8; some are cut, some lie whole.
ModelSpec ReadableModel(const ReadableTraining& training);

// Returns the value of each element of a parameter after a commit. Neighbouring commits differ, also in another life;
// values repeat after 64 commits.
float ValueAt(absl::string_view parameter, int64_t commit);

// Trains to the end, across servers that die. Waits for kMayCommit before each commit.
absl::Status TrainReadable(const ReadableTraining& training, Board& board);

}  // namespace paramshard::test

#endif  // PARAMSHARD_LAB_CAMPAIGN_READABLE_TRAINING_H_
