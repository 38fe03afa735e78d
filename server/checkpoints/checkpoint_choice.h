// Checkpoints of a model in the folder of all checkpoints, and the choice of the one that it is restored from.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_CHECKPOINT_CHOICE_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_CHECKPOINT_CHOICE_H_

#include <cstdint>
#include <string>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace paramshard::server {

// Request for a checkpoint.
struct CheckpointRequest {
  enum class Kind : uint8_t {
    kLatest,  // the checkpoint that was saved last
    kStep,    // the checkpoint of this step; of several histories, the one that was saved last
    kFolder,  // the checkpoint of this name
    kPath,    // the checkpoint in this folder, in any place
    kNone,    // no checkpoint: a new model begins with its initial values
  };

  Kind kind = Kind::kLatest;
  int64_t step = 0;         // of kStep
  std::string folder = {};  // of kFolder: "step-000000012000-0123abcd"; of kPath: "/copies/good"

  friend bool operator==(const CheckpointRequest&, const CheckpointRequest&) = default;
};
// Parses "latest", "12000", "step-000000012000-0123abcd", an absolute path or "none". INVALID_ARGUMENT for any other
// text.
absl::StatusOr<CheckpointRequest> ParseCheckpointRequest(absl::string_view text);

// Identity of one checkpoint of a model: node 0 sends it to tell the other daemons its choice.
struct CheckpointId {
  std::string folder = {};
  absl::uint128 save_id = 0;

  friend bool operator==(const CheckpointId&, const CheckpointId&) = default;
};

struct CheckpointChoice {
  std::string path = {};
  CheckpointId id = {};
  int64_t step = 0;
};

// Finds a checkpoint in ROOT/MODEL. For the latest it reads the manifests of all checkpoints, one after the other; else
// only manifests of the step or the folder. Errors name the existing checkpoints: NOT_FOUND; DATA_LOSS if a manifest
// that was read is damaged; INVALID_ARGUMENT for a checkpoint of another model, or a folder that is no checkpoint's
// name. FAILED_PRECONDITION for an empty ROOT, which only a request with a path does not need.
absl::StatusOr<CheckpointChoice> ChooseCheckpoint(const std::string& root, absl::string_view model,
                                                  const CheckpointRequest& request);

// Returns ROOT/MODEL (checkpoint::ModelFolderName).
std::string ModelFolder(const std::string& root, absl::string_view model);

// Returns true if ROOT/MODEL has a checkpoint of this commit of a history that a restore would accept, as far as it
// sees before it reads rows.
bool HasWholeCheckpoint(const std::string& root, absl::string_view model, int64_t step, absl::uint128 history);

// Returns true if ROOT has folders of this model's checkpoints, damaged ones too. An error if ROOT cannot be read.
absl::StatusOr<bool> HasCheckpoint(const std::string& root, absl::string_view model);

// Finds the checkpoint that another daemon has chosen, by the name of its folder or by its path. INVALID_ARGUMENT for
// another text; errors of ChooseCheckpoint; FAILED_PRECONDITION if the folder holds another save here: the daemons do
// not see the same files.
absl::StatusOr<CheckpointChoice> FindCheckpoint(const std::string& root, absl::string_view model,
                                                const CheckpointId& id);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_CHECKPOINT_CHOICE_H_
