#include "server/checkpoints/checkpoint_choice.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "common/checkpoint/content_hash.h"
#include "common/checkpoint/reader.h"
#include "common/checkpoint/step_folder.h"
#include "common/model/names.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

namespace fs = std::filesystem;
using checkpoint::StepEntry;

constexpr absl::string_view kLatestText = "latest";
constexpr absl::string_view kNoneText = "none";
// Largest number of checkpoints or models that a message names.
constexpr size_t kMaxNamed = 8;

// "a, b, c and 4 more".
std::string NamesText(const std::vector<std::string>& names) {
  const size_t named = std::min(names.size(), kMaxNamed);
  const std::string text =
      absl::StrJoin(names.end() - static_cast<int64_t>(named), names.end(), ", ",
                    [](std::string* out, const std::string& name) { absl::StrAppend(out, DisplayName(name)); });
  return named == names.size() ? text : absl::StrCat(text, " and ", names.size() - named, " more");
}

std::string WholeText(absl::Span<const StepEntry> steps, const std::string& model_folder) {
  if (steps.empty()) return absl::StrCat("found none in ", model_folder);
  std::vector<std::string> whole;
  for (const StepEntry& step : steps) {
    if (step.manifest.ok()) whole.push_back(fs::path(step.path).filename().string());
  }
  if (whole.empty()) return absl::StrCat("found none in ", model_folder, " that is complete");
  std::sort(whole.begin(), whole.end());
  return absl::StrCat("found ", NamesText(whole));
}

// Says which checkpoints or models there are.
std::string WhatThereIs(const std::string& root, const std::string& model_folder) {
  const auto steps = checkpoint::ListSteps(model_folder);
  if (steps.ok()) return WholeText(*steps, model_folder);
  std::vector<std::string> models;
  std::error_code error;
  for (fs::directory_iterator entry(root, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_directory(ignored)) models.push_back(entry->path().filename().string());
  }
  if (error) return absl::StrCat(root, " cannot be read: ", error.message());
  std::sort(models.begin(), models.end());
  if (models.empty()) return absl::StrCat(root, " has no folder of a model");
  return absl::StrCat(root, " has the folders ", NamesText(models));
}

absl::Status Invalid(absl::string_view subject, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat(subject, ": ", message));
}

bool IsStepFolder(absl::string_view name) {
  const auto parsed = checkpoint::ParseStepFolderName(name);
  return parsed.has_value() && !parsed->save_id.has_value();
}

absl::StatusOr<StepEntry> FindFolder(const std::string& model_folder, const std::string& name) {
  // The check rules out paths to other places.
  if (!IsStepFolder(name)) return Invalid(DisplayName(name), "want the name of a checkpoint's folder");
  StepEntry entry{.path = (fs::path(model_folder) / name).string(), .name = *checkpoint::ParseStepFolderName(name)};
  entry.manifest = checkpoint::ReadManifest(entry.path);
  if (!entry.manifest.ok()) return entry.manifest.status();
  return entry;
}

absl::StatusOr<StepEntry> Find(const std::string& model_folder, const CheckpointRequest& request) {
  switch (request.kind) {
    case CheckpointRequest::Kind::kLatest:
      return checkpoint::LatestStep(model_folder);
    case CheckpointRequest::Kind::kStep:
      return checkpoint::FindStep(model_folder, request.step);
    case CheckpointRequest::Kind::kFolder:
      return FindFolder(model_folder, request.folder);
    case CheckpointRequest::Kind::kNone:
      return Invalid(kNoneText, "it names no checkpoint; only the creation of a model takes it");
    case CheckpointRequest::Kind::kPath:
      break;
  }
  StepEntry entry{.path = request.folder, .name = {}};
  entry.manifest = checkpoint::ReadManifest(entry.path);
  if (!entry.manifest.ok()) return entry.manifest.status();
  return entry;
}

}  // namespace

absl::StatusOr<CheckpointRequest> ParseCheckpointRequest(absl::string_view text) {
  if (text == kLatestText) return CheckpointRequest();
  if (text == kNoneText) return CheckpointRequest{.kind = CheckpointRequest::Kind::kNone};
  if (IsStepFolder(text)) {
    return CheckpointRequest{.kind = CheckpointRequest::Kind::kFolder, .folder = std::string(text)};
  }
  if (absl::StartsWith(text, "/") && text.size() <= PATH_MAX && !absl::StrContains(text, '\0')) {
    return CheckpointRequest{.kind = CheckpointRequest::Kind::kPath, .folder = std::string(text)};
  }
  int64_t step = 0;
  if (absl::SimpleAtoi(text, &step) && step >= 0) {
    return CheckpointRequest{.kind = CheckpointRequest::Kind::kStep, .step = step};
  }
  return Invalid("checkpoint",
                 absl::StrCat("want latest, a step, the name of a checkpoint's folder or an absolute path, got ",
                              DisplayName(text)));
}

absl::StatusOr<CheckpointChoice> ChooseCheckpoint(const std::string& root, absl::string_view model,
                                                  const CheckpointRequest& request) {
  const bool has_path = request.kind == CheckpointRequest::Kind::kPath;
  if (root.empty() && !has_path) {
    return absl::FailedPreconditionError(absl::StrCat(
        "restore ", DisplayName(model), ": --save-dir is not set; name the checkpoint by an absolute path"));
  }
  const std::string model_folder = ModelFolder(root, model);
  const absl::StatusOr<StepEntry> found = Find(model_folder, request);
  if (!found.ok()) {
    return absl::Status(found.status().code(),
                        absl::StrCat("restore ", DisplayName(model), ": ", found.status().message(),
                                     has_path ? "" : absl::StrCat("; ", WhatThereIs(root, model_folder))));
  }
  if (found->manifest->model != model) {
    return Invalid(absl::StrCat("restore ", DisplayName(model)),
                   absl::StrCat(found->path, ": want a checkpoint of this model, got one of ",
                                DisplayName(found->manifest->model)));
  }
  return CheckpointChoice{
      .path = found->path,
      .id = {.folder = fs::path(found->path).filename().string(), .save_id = found->manifest->save_id},
      .step = found->manifest->step};
}

std::string ModelFolder(const std::string& root, absl::string_view model) {
  return (fs::path(root) / checkpoint::ModelFolderName(model)).string();
}

bool HasWholeCheckpoint(const std::string& root, absl::string_view model, int64_t step, absl::uint128 history) {
  const fs::path path = fs::path(ModelFolder(root, model)) / checkpoint::StepFolderName(step, history);
  const auto reader = checkpoint::Reader::Open(path.string(), {.owner = geteuid()});
  return reader.ok() && reader->manifest().history == history;
}

absl::StatusOr<bool> HasCheckpoint(const std::string& root, absl::string_view model) {
  std::error_code error;
  const fs::directory_iterator readable(root, error);
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("restore ", DisplayName(model), ": ", root));
  const absl::StatusOr<std::vector<std::string>> folders = checkpoint::ListStepFolders(ModelFolder(root, model));
  if (absl::IsNotFound(folders.status())) return false;
  RETURN_IF_ERROR(folders.status());
  return !folders->empty();
}

absl::StatusOr<CheckpointChoice> FindCheckpoint(const std::string& root, absl::string_view model,
                                                const CheckpointId& id) {
  ASSIGN_OR_RETURN(const CheckpointRequest request, ParseCheckpointRequest(id.folder));
  if (request.kind != CheckpointRequest::Kind::kFolder && request.kind != CheckpointRequest::Kind::kPath) {
    return Invalid(absl::StrCat("restore ", DisplayName(model)),
                   absl::StrCat("want a checkpoint folder that node 0 chose, got ", DisplayName(id.folder)));
  }
  ASSIGN_OR_RETURN(CheckpointChoice choice, ChooseCheckpoint(root, model, request));
  if (choice.id.save_id == id.save_id) return choice;
  return absl::FailedPreconditionError(absl::StrCat(
      "restore ", DisplayName(model), ": ", choice.path, ": want save ", checkpoint::HashText(id.save_id), ", got ",
      checkpoint::HashText(choice.id.save_id), ": all daemons must see the same folder of checkpoints"));
}

}  // namespace paramshard::server
