// Names of a checkpoint's folder and files, and the list of a model's checkpoints.
//
//   ROOT/MODEL/step-000000012000-0123abcd/                    a checkpoint: step, first 8 digits of its history's id
//   ROOT/MODEL/step-000000012000-0123abcd.tmp-SAVEID/         an unfinished one, SAVEID of 32 digits
//     manifest.json  spec.binpb  common.safetensors  rank-00000-of-00002.safetensors ...  (part-00000.json while made)
#ifndef PARAMSHARD_COMMON_CHECKPOINT_STEP_FOLDER_H_
#define PARAMSHARD_COMMON_CHECKPOINT_STEP_FOLDER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/checkpoint/common_state.h"  // kCommonFileName
#include "common/checkpoint/manifest.h"

namespace paramshard::checkpoint {

inline constexpr char kManifestFileName[] = "manifest.json";
inline constexpr char kSpecFileName[] = "spec.binpb";
std::string PartFileName(int node);  // "part-00002.json"

// Returns the name of a model's folder in ROOT: the model's name with every byte but letters, digits, '_', '-' and '.'
// (not at the start) as %XX; where that is longer than 128 bytes, its first 128, '~' and the 32 digits of the name's
// hash.
std::string ModelFolderName(absl::string_view model);

struct StepName {
  int64_t step = 0;
  std::string history_digits;                 // 8 of them
  std::optional<absl::uint128> save_id = {};  // of an unfinished checkpoint
  friend bool operator==(const StepName&, const StepName&) = default;
};
// `history` is a history's id.
std::string StepFolderName(int64_t step, absl::uint128 history);
std::string TemporaryFolderName(int64_t step, absl::uint128 history, absl::uint128 save_id);
// Returns nullopt for any name that these two do not return.
std::optional<StepName> ParseStepFolderName(absl::string_view name);

// One checkpoint of a model's folder.
struct StepEntry {
  std::string path;
  StepName name;
  // Its manifest, or an error of ReadManifest, which names the file.
  absl::StatusOr<Manifest> manifest = absl::UnknownError("not read");
};

// Reads and parses `folder`/manifest.json, and compares it with the folder's name. NOT_FOUND without a manifest: the
// folder is not a checkpoint. Errors of ParseManifest; DATA_LOSS if the folder is named for a different step or
// history. With an `owner`, PERMISSION_DENIED of RegularFile::CheckOwner. All messages begin with the file's path and
// ": ".
absl::StatusOr<Manifest> ReadManifest(const std::string& folder, std::optional<uid_t> owner = {});

// Returns the finished checkpoints by save serial, damaged ones first. Unfinished checkpoints and other names are left
// out. NOT_FOUND without the folder.
absl::StatusOr<std::vector<StepEntry>> ListSteps(const std::string& model_folder);
// Returns the names of the same folders, by step, without reading a manifest.
absl::StatusOr<std::vector<std::string>> ListStepFolders(const std::string& model_folder);
// Returns the paths of the folders of unfinished checkpoints.
absl::StatusOr<std::vector<std::string>> ListTemporaryFolders(const std::string& model_folder);

// Returns the checkpoint with the largest save serial. NOT_FOUND if there is none. DATA_LOSS naming a damaged
// checkpoint if there is one, for it may be the latest: use FindStep instead.
absl::StatusOr<StepEntry> LatestStep(const std::string& model_folder);
// Returns the checkpoint of a step; of several histories the one that was saved last. NOT_FOUND; DATA_LOSS naming a
// damaged one. Reads only manifests of this step.
absl::StatusOr<StepEntry> FindStep(const std::string& model_folder, int64_t step);

}  // namespace paramshard::checkpoint

#endif  // PARAMSHARD_COMMON_CHECKPOINT_STEP_FOLDER_H_
