// Which checkpoint a model is restored from.
#ifndef PARAMSHARD_SERVER_RESTORES_CHECKPOINT_CHOICE_H_
#define PARAMSHARD_SERVER_RESTORES_CHECKPOINT_CHOICE_H_

#include <cstdint>
#include <string>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace paramshard::server {

// What is asked for.
struct CheckpointRequest {
  enum class Kind : uint8_t {
    kLatest,  // the one that was saved last
    kStep,    // of several histories with this step, the one that was saved last
    kFolder,  // the one of this name
    kPath,    // the one in this folder, wherever that is
    kNone,    // none: a model that is created begins with its initial values
  };

  Kind kind = Kind::kLatest;
  int64_t step = 0;         // of kStep
  std::string folder = {};  // of kFolder: "step-000000012000-0123abcd"; of kPath: "/copies/good"

  friend bool operator==(const CheckpointRequest&, const CheckpointRequest&) = default;
};
// "latest", "12000", "step-000000012000-0123abcd", an absolute path or "none". INVALID_ARGUMENT for any other text.
absl::StatusOr<CheckpointRequest> ParseCheckpointRequest(absl::string_view text);

// Names one checkpoint of a model: by it one daemon tells the others which one it has chosen.
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

// Looks into ROOT/MODEL. The latest is known by the manifests of all checkpoints, which are read one after the other;
// else only those of the step or the folder are. Errors say what there is instead: NOT_FOUND; DATA_LOSS where a
// manifest among those is damaged; INVALID_ARGUMENT for a checkpoint of another model, or a folder that is none's name.
// An empty ROOT is FAILED_PRECONDITION, but for a request with a path, which does not need it.
absl::StatusOr<CheckpointChoice> ChooseCheckpoint(const std::string& root, absl::string_view model,
                                                  const CheckpointRequest& request);

// Whether ROOT has folders of this model's checkpoints, damaged ones too. A ROOT that cannot be read is an error: what
// is in it is not known.
absl::StatusOr<bool> HasCheckpoint(const std::string& root, absl::string_view model);

// The one that another daemon has chosen. Errors of ChooseCheckpoint; FAILED_PRECONDITION when the folder holds another
// save here: the daemons do not see the same files.
absl::StatusOr<CheckpointChoice> FindCheckpoint(const std::string& root, absl::string_view model,
                                                const CheckpointId& id);
// FAILED_PRECONDITION likewise.
absl::Status CheckIsSave(const CheckpointChoice& choice, absl::string_view model, absl::uint128 save_id);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_RESTORES_CHECKPOINT_CHOICE_H_
