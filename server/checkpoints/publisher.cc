#include "server/checkpoints/publisher.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/content_hash.h"
#include "common/checkpoint/reader.h"
#include "common/checkpoint/step_folder.h"
#include "common/checkpoint/tensor_key.h"
#include "common/model/limits.h"
#include "common/model/model_spec_difference.h"
#include "common/model/model_spec_proto.h"
#include "common/model/names.h"
#include "common/safetensors/regular_file.h"
#include "kernels/base/check.h"
#include "kernels/base/same_file.h"
#include "kernels/base/status_macros.h"
#include "server/base/own_folder.h"
#include "server/checkpoints/checkpoint_choice.h"

namespace paramshard::server {
namespace {

namespace fs = std::filesystem;
using checkpoint::CommonState;
using checkpoint::Manifest;
using checkpoint::Part;

constexpr char kLockName[] = "lock";
constexpr char kDamaged[] = ".damaged-";

// Returns a little more than the checkpoint will take: its tensors, an entry of each in a header of every rank and in
// the manifest, the ranks' client states.
int64_t RoomFor(const ModelSpec& spec, const checkpoint::World& world) {
  constexpr int64_t kHeaderEntryBytes = 512;
  constexpr int64_t kBlockBytes = 4096;
  int64_t state_bytes = 0;
  int64_t entry_bytes = 0;
  for (const UnitSpec& unit : spec.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      for (const checkpoint::ArrayKind kind : checkpoint::ArraysOf(parameter)) {
        state_bytes += ShapeOf(parameter, kind)->size_bytes();
        entry_bytes += kHeaderEntryBytes + 4 * static_cast<int64_t>(parameter.name.size());
      }
    }
  }
  const int64_t rank_bytes = entry_bytes + static_cast<int64_t>(kMaxClientStateBytes) + kBlockBytes;
  return state_bytes + state_bytes / 10'000 + (int64_t{world.size} + 2) * rank_bytes;
}

absl::Status About(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

// Returns the manifest, or DATA_LOSS if a file is missing or has another size. Reads no file.
absl::StatusOr<Manifest> CheckedManifest(const checkpoint::StepEntry& step) {
  for (const checkpoint::FileEntry& file : step.manifest->files) {
    const fs::path path = fs::path(step.path) / file.name;
    std::error_code error;
    const uintmax_t size_bytes = fs::file_size(path, error);
    if (error || size_bytes != static_cast<uintmax_t>(file.size_bytes)) {
      return absl::DataLossError(absl::StrCat(path.string(), ": want ", file.size_bytes, " bytes"));
    }
  }
  return step.manifest;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Publisher>> Publisher::Open(DiskCalls* calls, const std::string& root,
                                                           const ModelSpec& spec) {
  const Disk disk(calls);
  RETURN_IF_ERROR(CheckOwnFolder(disk, root));
  auto publisher = std::unique_ptr<Publisher>(new Publisher(disk, ModelFolder(root, spec.name), spec));
  RETURN_IF_ERROR(publisher->MakeModelFolder(root));
  ASSIGN_OR_RETURN(publisher->lock_, disk.Lock(publisher->PathInFolder(kLockName)));
  RETURN_IF_ERROR(publisher->FindLastSerial());
  // Puts renames in the page cache on the disk before any of the renamed folders is deleted.
  publisher->leftovers_ = disk.SyncFolder(publisher->model_folder_);
  publisher->in_doubt_ = !publisher->leftovers_.ok();
  publisher->RemoveLeftovers();
  return publisher;
}

absl::Status Publisher::MakeModelFolder(const std::string& root) const {
  const absl::Status made = disk_.MakeFolder(model_folder_);
  if (!made.ok() && !absl::IsAlreadyExists(made)) return made;
  RETURN_IF_ERROR(CheckOwnFolder(disk_, model_folder_));
  return disk_.SyncFolder(root);
}

// The serial of a damaged checkpoint cannot be read: each of them leaves out one serial above the known ones.
absl::Status Publisher::FindLastSerial() {
  ASSIGN_OR_RETURN(const std::vector<checkpoint::StepEntry> steps, checkpoint::ListSteps(model_folder_));
  int64_t damaged = 0;
  for (const checkpoint::StepEntry& step : steps) {
    if (step.manifest.ok()) last_serial_ = std::max(last_serial_, step.manifest->save_serial);
    if (!step.manifest.ok()) ++damaged;
  }
  last_serial_ += damaged;
  return absl::OkStatus();
}

void Publisher::RemoveLeftovers() {
  if (in_doubt_) return;
  leftovers_ = absl::OkStatus();
  const absl::StatusOr<std::vector<std::string>> paths = checkpoint::ListTemporaryFolders(model_folder_);
  leftovers_.Update(paths.status());
  if (!paths.ok()) return;
  for (const std::string& path : *paths) leftovers_.Update(disk_.RemoveFolder(path));
}

std::string Publisher::StepPath(const SaveIdentity& identity) const {
  return (fs::path(model_folder_) / checkpoint::StepFolderName(identity.step, identity.history)).string();
}

std::string Publisher::PathInFolder(const std::string& name) const { return (fs::path(model_folder_) / name).string(); }

std::string Publisher::PathOf(const std::string& name) const {
  return (fs::path(under_way_->staging.path()) / name).string();
}

absl::Status Publisher::CheckRoom(const checkpoint::World& world) const {
  ASSIGN_OR_RETURN(const int64_t free_bytes, disk_.FreeBytes(model_folder_));
  const int64_t needed_bytes = RoomFor(spec_, world);
  if (needed_bytes <= free_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(model_folder_, ": a checkpoint takes ", needed_bytes, " bytes, ", free_bytes, " free"));
}

absl::Status Publisher::Begin(const SaveIdentity& identity, const checkpoint::World& world) {
  if (under_way_.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat("save step ", identity.step, " of ", DisplayName(spec_.name),
                                                      ": another save is in progress: step ",
                                                      under_way_->identity.step));
  }
  RemoveLeftovers();
  const std::string path = StepPath(identity);
  ASSIGN_OR_RETURN(const bool exists, disk_.Exists(path));
  if (exists) return absl::AlreadyExistsError(absl::StrCat(path, ": already exists"));
  RETURN_IF_ERROR(CheckRoom(world));
  StagingDirectory staging(disk_, model_folder_, identity);
  RETURN_IF_ERROR(disk_.MakeFolder(staging.path()));
  under_way_.emplace(UnderWay{identity, world, std::move(staging)});
  return absl::OkStatus();
}

absl::Status Publisher::Abandon() {
  if (!under_way_.has_value()) return absl::OkStatus();
  const std::string path = under_way_->staging.path();
  under_way_.reset();
  const absl::Status removed = disk_.RemoveFolder(path);
  leftovers_.Update(removed);
  return removed;
}

Publisher::Result Publisher::FindSaved(const SaveIdentity& identity) const {
  const std::string path = StepPath(identity);
  const absl::StatusOr<checkpoint::Reader> reader = checkpoint::Reader::Open(path, {.owner = geteuid()});
  if (!reader.ok()) return {.status = reader.status()};
  const Manifest& manifest = reader->manifest();
  if (manifest.history != identity.history) {
    return {.status =
                absl::AlreadyExistsError(absl::StrCat(path, ": already exists, as a checkpoint of another history"))};
  }
  Result result{.state = SaveState::kAlreadySaved,
                .path = path,
                .save_serial = manifest.save_serial,
                .size_bytes = manifest.size_bytes()};
  if (!in_doubt_) return result;
  result.state = SaveState::kUnknown;
  result.status = absl::FailedPreconditionError(absl::StrCat(path, ": not known to be on the disk"));
  return result;
}

bool Publisher::HoldsFolder() const {
  struct stat held;
  struct stat present;
  return CheckOwnFolder(disk_, model_folder_).ok() && fstat(lock_.get(), &held) == 0 &&
         stat(PathInFolder(kLockName).c_str(), &present) == 0 && AreSameFile(held, present);
}

absl::StatusOr<std::string> Publisher::SetDamagedAside(const SaveIdentity& identity) const {
  const std::string path = StepPath(identity);
  const absl::Status status = checkpoint::Reader::Open(path, {.owner = geteuid()}).status();
  ASSIGN_OR_RETURN(const bool exists, disk_.Exists(path));
  // A folder without a manifest is damaged. Other errors are errors of the disk, or of a checkpoint that may still be
  // readable elsewhere.
  const bool is_damaged = absl::IsDataLoss(status) || absl::IsInvalidArgument(status) || absl::IsNotFound(status);
  if (!exists || !is_damaged) return "";
  const std::string aside = absl::StrCat(path, kDamaged, checkpoint::HashText(identity.save_id));
  RETURN_IF_ERROR(disk_.Rename(path, aside));
  return aside;
}

Publisher::Result Publisher::AbandonFor(const absl::Status& status) {
  // The result says why; leftovers() says what could not be removed.
  Abandon().IgnoreError();
  return {.state = SaveState::kAbandoned, .status = status};
}

Publisher::Result Publisher::Publish(absl::Span<const PartReport> reports, CommonState common,
                                     const Occasion& occasion) {
  PARAMSHARD_CHECK(under_way_.has_value() && common.commit_number == under_way_->identity.step);
  const absl::StatusOr<Manifest> manifest = Prepare(reports, std::move(common), occasion);
  if (!manifest.ok()) return AbandonFor(manifest.status());
  return Rename(*manifest);
}

absl::StatusOr<std::vector<Part>> Publisher::ReadParts(absl::Span<const PartReport> reports) const {
  std::vector<Part> parts;
  for (const PartReport& report : reports) {
    const std::string path = PathOf(checkpoint::PartFileName(report.node));
    const absl::StatusOr<std::string> text = safetensors::ReadWholeFile(path, checkpoint::kMaxManifestBytes);
    if (absl::IsNotFound(text.status())) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, ": not found; does node ", report.node, " share this folder of checkpoints?"));
    }
    if (!text.ok()) return text.status();
    if (checkpoint::HashBytes(*text) != report.hash) {
      return absl::DataLossError(absl::StrCat(path, ": want hash ", checkpoint::HashText(report.hash), ", got ",
                                              checkpoint::HashText(checkpoint::HashBytes(*text))));
    }
    absl::StatusOr<Part> part = checkpoint::ParsePart(*text);
    if (!part.ok()) return About(path, part.status());
    parts.push_back(*std::move(part));
  }
  return parts;
}

absl::Status Publisher::WriteState(absl::Span<const PartReport> reports, CommonState common, Manifest& manifest) const {
  ASSIGN_OR_RETURN(const std::vector<Part> parts, ReadParts(reports));
  ASSIGN_OR_RETURN(common.step_counts, checkpoint::MergeParts(spec_, parts, manifest));
  ASSIGN_OR_RETURN(const std::vector<std::string> common_texts, checkpoint::SerializeCommonState(spec_, common));
  for (const std::string& text : common_texts) {
    const std::string name = checkpoint::CommonFileName(static_cast<int>(&text - common_texts.data()));
    ASSIGN_OR_RETURN(checkpoint::FileEntry entry, checkpoint::EntryOf(name, text));
    manifest.files.push_back(std::move(entry));
    RETURN_IF_ERROR(disk_.WriteFile(PathOf(name), text));
  }
  std::string spec_text;
  PARAMSHARD_CHECK(ModelSpecToProto(spec_).SerializeToString(&spec_text));
  manifest.spec_fingerprint = ModelSpecFingerprint(spec_);
  manifest.spec_bytes = static_cast<int64_t>(spec_text.size());
  manifest.spec_hash = checkpoint::HashBytes(spec_text);
  RETURN_IF_ERROR(disk_.WriteFile(PathOf(checkpoint::kSpecFileName), spec_text));
  for (const PartReport& report : reports) {
    RETURN_IF_ERROR(disk_.RemoveFile(PathOf(checkpoint::PartFileName(report.node))));
  }
  return absl::OkStatus();
}

absl::StatusOr<Manifest> Publisher::Prepare(absl::Span<const PartReport> reports, CommonState common,
                                            const Occasion& occasion) const {
  const SaveIdentity& identity = under_way_->identity;
  Manifest manifest{.model = spec_.name,
                    .save_id = identity.save_id,
                    .save_serial = last_serial_ + 1,
                    .saved_at = occasion.saved_at,
                    .history = identity.history,
                    .step = identity.step,
                    .version = common.version,
                    .parent = occasion.parent,
                    .world = under_way_->world};
  RETURN_IF_ERROR(WriteState(reports, std::move(common), manifest));
  ASSIGN_OR_RETURN(const std::string text, checkpoint::SerializeManifest(manifest));
  RETURN_IF_ERROR(disk_.WriteFile(PathOf(checkpoint::kManifestFileName), text));
  RETURN_IF_ERROR(disk_.SyncFolder(under_way_->staging.path()));
  // Finds what a restore would refuse (files of another user, a file that this node does not see, rows that occur
  // twice) while the last good checkpoint is still kept.
  RETURN_IF_ERROR(checkpoint::Reader::Open(under_way_->staging.path(), {.owner = geteuid()}).status());
  return manifest;
}

Publisher::Result Publisher::Rename(const Manifest& manifest) {
  const std::string path = StepPath(under_way_->identity);
  Result result{.path = path, .save_serial = manifest.save_serial, .size_bytes = manifest.size_bytes()};
  result.status = disk_.Rename(under_way_->staging.path(), path);
  if (!result.status.ok()) {
    // A rename over a network may have succeeded although its answer is an error.
    const absl::StatusOr<bool> exists = disk_.Exists(path);
    if (exists.ok() && !*exists) return AbandonFor(result.status);
  }
  under_way_.reset();
  last_serial_ = manifest.save_serial;
  if (result.status.ok()) result.status = disk_.SyncFolder(model_folder_);
  in_doubt_ = !result.status.ok();
  result.state = in_doubt_ ? SaveState::kUnknown : SaveState::kPublished;
  return result;
}

Deletion Publisher::Retain(const RetentionPolicy& policy, absl::FunctionRef<bool()> is_read) {
  if (in_doubt_) {
    return {.status = absl::FailedPreconditionError(
                absl::StrCat(model_folder_, ": nothing is deleted: a rename is not known to be on the disk"))};
  }
  // Manifests are large: none is read where nothing can have expired.
  const absl::StatusOr<std::vector<std::string>> folders = checkpoint::ListStepFolders(model_folder_);
  if (!folders.ok()) return {.status = folders.status()};
  if (static_cast<int64_t>(folders->size()) <= policy.newest) return {};
  absl::StatusOr<std::vector<checkpoint::StepEntry>> steps = checkpoint::ListSteps(model_folder_);
  if (!steps.ok()) return {.status = steps.status()};
  for (checkpoint::StepEntry& step : *steps) {
    if (step.manifest.ok()) step.manifest = CheckedManifest(step);
  }
  std::vector<checkpoint::StepEntry> expired = ExpiredSteps(*steps, policy);
  if (expired.empty() || is_read()) return {};
  if (expired.size() > kMaxDeletions) expired.erase(expired.begin() + kMaxDeletions, expired.end());
  const Deletion deletion = DeleteSteps(disk_, model_folder_, expired);
  in_doubt_ = deletion.in_doubt;
  return deletion;
}

}  // namespace paramshard::server
