// A model with a random state, and checkpoints of it as daemons write them.
#ifndef PARAMSHARD_TESTS_COMMON_CHECKPOINT_SAVED_MODEL_H_
#define PARAMSHARD_TESTS_COMMON_CHECKPOINT_SAVED_MODEL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/checkpoint/common_state.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/rank_file.h"
#include "common/model/model_spec.h"

namespace paramshard::checkpoint {

// Every kind of array: fp32 masters, remainders, all types of moments, frozen planes of every format; odd rows and
// columns, small and large parameters, three dimensions. Checked.
ModelSpec SpecOfEverything();
// One parameter w [3, 2] with delayed scaling.
ModelSpec TinySpec();
// One parameter w with rows of 257 fp32 elements, so 4,080 rows are a chunk.
ModelSpec TallSpec(int64_t rows);
// Checks a description.
ModelSpec Checked(const ModelSpec& spec);

class SavedModel {
 public:
  // All rows of tensors, by key.
  using Arrays = std::map<std::string, std::vector<uint8_t>>;

  // Draws every byte of the state.
  SavedModel(ModelSpec spec, uint64_t seed);
  // Takes a given state, with every tensor of the spec.
  SavedModel(ModelSpec spec, Arrays arrays, CommonState common)
      : spec_(std::move(spec)), arrays_(std::move(arrays)), common_(std::move(common)) {}

  const ModelSpec& spec() const { return spec_; }
  const Arrays& arrays() const { return arrays_; }
  const CommonState& common() const { return common_; }
  static std::string ClientState(int rank);

  struct Options {
    World world = {};
    int ranks_per_node = 1;
    int64_t step = 12;
    int64_t save_serial = 3;
    absl::uint128 history = 0;
    int64_t max_header_bytes = RankFilePlan::kMaxHeaderBytes;
    std::function<std::string(int rank)> client_state = ClientState;
  };
  // Makes a folder of the checkpoint's name in `model_folder`, writes the checkpoint into it, and returns its path.
  std::string Write(const std::string& model_folder, const Options& options) const;

  // A rank's files in memory, and the entries that it reports.
  struct RankFiles {
    std::vector<std::string> bytes;
    std::vector<FileEntry> entries;
  };
  RankFiles FilesOf(const Options& options, int rank, ContentHashes& tensors) const;

 private:
  ModelSpec spec_;
  Arrays arrays_;
  CommonState common_;
};

void WriteText(const std::string& path, const std::string& text);
std::string ReadText(const std::string& path);

}  // namespace paramshard::checkpoint

#endif  // PARAMSHARD_TESTS_COMMON_CHECKPOINT_SAVED_MODEL_H_
