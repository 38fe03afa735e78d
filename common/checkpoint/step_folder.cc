#include "common/checkpoint/step_folder.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/safetensors/regular_file.h"
#include "kernels/base/status_macros.h"

namespace paramshard::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kPrefix = "step-";
constexpr absl::string_view kTemporary = ".tmp-";
constexpr size_t kHistoryDigits = 8;
constexpr size_t kMaxEscapedBytes = 128;
constexpr int64_t kMaxStep = int64_t{1} << 62;

absl::Status About(absl::string_view subject, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(subject, ": ", status.message()));
}

std::string HistoryDigits(absl::uint128 history) { return HashText(history).substr(0, kHistoryDigits); }

// Returns the names and paths of the entries of a folder that are named as checkpoints.
absl::StatusOr<std::vector<std::pair<StepName, std::string>>> ListNames(const std::string& model_folder) {
  std::vector<std::pair<StepName, std::string>> names;
  std::error_code error;
  for (fs::directory_iterator entry(model_folder, error), end; !error && entry != end; entry.increment(error)) {
    const auto name = ParseStepFolderName(entry->path().filename().string());
    if (name.has_value()) names.emplace_back(*name, entry->path().string());
  }
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat(model_folder, ": reading the folder failed"));
  return names;
}

// Orders by serial; damaged checkpoints have none and come first, by name.
bool ComesBefore(const StepEntry& a, const StepEntry& b) {
  if (a.manifest.ok() != b.manifest.ok()) return b.manifest.ok();
  if (a.manifest.ok() && a.manifest->save_serial != b.manifest->save_serial) {
    return a.manifest->save_serial < b.manifest->save_serial;
  }
  return a.path < b.path;
}

// `what` is the consequence for the caller.
absl::Status Damaged(const StepEntry& entry, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(entry.manifest.status().message(), ": ", what));
}

absl::StatusOr<std::vector<StepEntry>> ReadSteps(const std::string& model_folder,
                                                 absl::FunctionRef<bool(const StepName&)> is_wanted) {
  ASSIGN_OR_RETURN(const auto names, ListNames(model_folder));
  std::vector<StepEntry> steps;
  for (const auto& [name, path] : names) {
    if (!name.save_id.has_value() && is_wanted(name)) steps.push_back({path, name, ReadManifest(path)});
  }
  std::sort(steps.begin(), steps.end(), ComesBefore);
  return steps;
}

}  // namespace

std::string PartFileName(int node) { return absl::StrFormat("part-%05d.json", node); }

std::string ModelFolderName(absl::string_view model) {
  std::string escaped;
  for (const char byte : model) {
    const bool is_plain = absl::ascii_isalnum(byte) || byte == '_' || byte == '-' || (byte == '.' && !escaped.empty());
    if (is_plain) {
      escaped.push_back(byte);
    } else {
      absl::StrAppendFormat(&escaped, "%%%02X", static_cast<uint8_t>(byte));
    }
  }
  if (escaped.size() <= kMaxEscapedBytes) return escaped;
  return absl::StrCat(escaped.substr(0, kMaxEscapedBytes), "~", HashText(HashBytes(model)));
}

std::string StepFolderName(int64_t step, absl::uint128 history) {
  return absl::StrFormat("%s%012d-%s", kPrefix, step, HistoryDigits(history));
}

std::string TemporaryFolderName(int64_t step, absl::uint128 history, absl::uint128 save_id) {
  return absl::StrCat(StepFolderName(step, history), kTemporary, HashText(save_id));
}

std::optional<StepName> ParseStepFolderName(absl::string_view name) {
  const absl::string_view whole = name;
  StepName parsed;
  const size_t temporary = name.find(kTemporary);
  if (temporary != name.npos) {
    parsed.save_id = ParseHash(name.substr(temporary + kTemporary.size()));
    if (!parsed.save_id.has_value()) return std::nullopt;
    name = name.substr(0, temporary);
  }
  const size_t dash = name.rfind('-');
  if (!absl::ConsumePrefix(&name, kPrefix) || dash < kPrefix.size()) return std::nullopt;
  const absl::string_view digits = name.substr(0, dash - kPrefix.size());
  parsed.history_digits = std::string(name.substr(digits.size() + 1));
  if (!absl::SimpleAtoi(digits, &parsed.step) || parsed.step < 0 || parsed.step > kMaxStep) return std::nullopt;
  // A name is valid if the functions above make the same one. Only the first digits of the history are known.
  const auto history = ParseHash(absl::StrCat(parsed.history_digits, std::string(24, '0')));
  if (parsed.history_digits.size() != kHistoryDigits || !history.has_value()) return std::nullopt;
  const std::string again = parsed.save_id.has_value() ? TemporaryFolderName(parsed.step, *history, *parsed.save_id)
                                                       : StepFolderName(parsed.step, *history);
  if (again != whole) return std::nullopt;
  return parsed;
}

absl::StatusOr<Manifest> ReadManifest(const std::string& folder, std::optional<uid_t> owner) {
  const std::string path = (fs::path(folder) / kManifestFileName).string();
  ASSIGN_OR_RETURN(const safetensors::RegularFile file, safetensors::RegularFile::Open(path));
  // The owner is checked before a byte of the file is parsed.
  if (owner.has_value()) {
    if (const absl::Status owned = file.CheckOwner(*owner); !owned.ok()) return About(path, owned);
  }
  const absl::StatusOr<std::string> text = file.ReadWhole(kMaxManifestBytes);
  absl::StatusOr<Manifest> manifest = text.ok() ? ParseManifest(*text) : text.status();
  if (!manifest.ok()) return About(path, manifest.status());
  const auto name = ParseStepFolderName(fs::path(folder).filename().string());
  // A copy may have any name, but a name of a step must be true.
  const bool matches =
      !name.has_value() || (name->step == manifest->step && name->history_digits == HistoryDigits(manifest->history));
  if (matches) return manifest;
  return absl::DataLossError(absl::StrCat(path, ": want the manifest of ", fs::path(folder).filename().string(),
                                          ", got the manifest of ", StepFolderName(manifest->step, manifest->history)));
}

absl::StatusOr<std::vector<StepEntry>> ListSteps(const std::string& model_folder) {
  return ReadSteps(model_folder, [](const StepName&) { return true; });
}

absl::StatusOr<std::vector<std::string>> ListStepFolders(const std::string& model_folder) {
  ASSIGN_OR_RETURN(auto names, ListNames(model_folder));
  std::sort(names.begin(), names.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first.step, a.second) < std::pair(b.first.step, b.second);
  });
  std::vector<std::string> folders;
  for (const auto& [name, path] : names) {
    if (!name.save_id.has_value()) folders.push_back(fs::path(path).filename().string());
  }
  return folders;
}

absl::StatusOr<std::vector<std::string>> ListTemporaryFolders(const std::string& model_folder) {
  ASSIGN_OR_RETURN(const auto names, ListNames(model_folder));
  std::vector<std::string> paths;
  for (const auto& [name, path] : names) {
    if (name.save_id.has_value()) paths.push_back(path);
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

absl::StatusOr<StepEntry> LatestStep(const std::string& model_folder) {
  ASSIGN_OR_RETURN(std::vector<StepEntry> steps, ListSteps(model_folder));
  if (steps.empty()) return absl::NotFoundError(absl::StrCat(model_folder, ": no checkpoint found"));
  if (!steps.front().manifest.ok()) {
    return Damaged(steps.front(), "it may be the latest checkpoint; name a different one, or remove the folder");
  }
  return std::move(steps.back());
}

absl::StatusOr<StepEntry> FindStep(const std::string& model_folder, int64_t step) {
  ASSIGN_OR_RETURN(std::vector<StepEntry> steps,
                   ReadSteps(model_folder, [&](const StepName& name) { return name.step == step; }));
  if (steps.empty()) {
    return absl::NotFoundError(absl::StrCat(model_folder, ": no checkpoint of step ", step, " found"));
  }
  if (steps.front().manifest.ok()) return std::move(steps.back());
  if (steps.size() == 1) {
    return Damaged(steps.front(), absl::StrCat("the checkpoint of step ", step, " is damaged; name a different step"));
  }
  return Damaged(steps.front(), absl::StrCat("it may be the last checkpoint of step ", step,
                                             "; name a different one by its folder, or remove this one"));
}

}  // namespace paramshard::checkpoint
