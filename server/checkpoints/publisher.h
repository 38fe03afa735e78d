// Node 0's side of saves: from a staging directory to a checkpoint.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_PUBLISHER_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_PUBLISHER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/checkpoint/common_state.h"
#include "common/checkpoint/manifest.h"
#include "common/model/model_spec.h"
#include "server/base/disk.h"
#include "server/checkpoints/retention.h"
#include "server/checkpoints/staging_directory.h"
#include "server/terms/save_message.h"

namespace paramshard::server {

// Publishes, deletes and cleans up in ROOT/MODEL. A lock on ROOT/MODEL/lock makes it the only publisher of the folder.
// (The lock is on a file, because a shared file system may lock a folder for one machine alone.)
//
//   Begin makes the staging directory -> every daemon writes its part (StagingDirectory) -> Publish, or Abandon
//
// Publish puts the parts together, writes common.safetensors, spec.binpb and manifest.json, syncs all, opens the folder
// as a restore would, and renames it to its name: the rename creates the checkpoint. A failure before the rename
// abandons the save. A failed fsync is not retried.
//
// Not thread-safe: used by the save thread. One save at a time.
class Publisher {
 public:
  // Makes ROOT/MODEL if it does not exist, locks it and removes the leftovers of earlier saves and deletions. `calls`
  // and `spec`, which has been checked, outlive the publisher. Errors of CheckOwnFolder and Disk; FAILED_PRECONDITION
  // if another process holds the lock or the file system has no locks. A failure to remove leftovers is no error: see
  // leftovers().
  static absl::StatusOr<std::unique_ptr<Publisher>> Open(DiskCalls* calls, const std::string& root,
                                                         const ModelSpec& spec);

  // Error of Open, the last Begin, or an Abandon after it for files that it could not remove; OK if nothing is left.
  const absl::Status& leftovers() const { return leftovers_; }
  // Returns true if a rename is not known to be on the disk.
  bool in_doubt() const { return in_doubt_; }

  // Returns true if ROOT/MODEL is still the folder that this publisher has locked. If it was removed or replaced,
  // another process may hold the lock of the folder that is there now: call Open again.
  bool HoldsFolder() const;

  // Removes leftovers and makes the staging directory of a save. FAILED_PRECONDITION while another save is in progress;
  // ALREADY_EXISTS if this step of this history is already saved; RESOURCE_EXHAUSTED if the file system has fewer free
  // bytes than the checkpoint will take. An error leaves none.
  absl::Status Begin(const SaveIdentity& identity, const checkpoint::World& world);

  // Further fields of the manifest.
  struct Occasion {
    std::optional<checkpoint::Manifest::Parent> parent = {};
    absl::Time saved_at = absl::UnixEpoch();
  };
  struct Result {
    // kPublished: it is the latest checkpoint, and on the disk. kAlreadySaved: nothing was written. kAbandoned: there
    // is no checkpoint, and the staging directory is removed as far as possible. kUnknown: the checkpoint has its name,
    // but a power failure may undo the rename; nothing is deleted until a later save is published.
    SaveState state = SaveState::kAbandoned;
    absl::Status status = absl::OkStatus();  // the cause, if there is no reliable checkpoint
    std::string path = {};                   // of the checkpoint; empty where it is abandoned
    int64_t save_serial = 0;
    int64_t size_bytes = 0;
  };
  // Ends the save in progress, with a report of every daemon. `common` has no step counts: the parts bring them.
  // Requires that a save is in progress, and that `common` is of its step.
  Result Publish(absl::Span<const PartReport> reports, checkpoint::CommonState common, const Occasion& occasion);

  // Ends the save in progress, if any, and removes its folder. An error names what is left, like leftovers(): the next
  // Begin tries again.
  absl::Status Abandon();

  // Looks for a step of a history, whichever process has published it. Returns kAlreadySaved; kUnknown while
  // in_doubt(); kAbandoned and the cause if it is not found (NOT_FOUND), or if the checkpoint of this name is of
  // another history, or damaged as far as a restore sees before it reads rows.
  Result FindSaved(const SaveIdentity& identity) const;
  // Renames a damaged checkpoint that has the name of this save to NAME.damaged-SAVEID, which is neither read as a
  // checkpoint nor deleted. Returns the new path; empty if there is no checkpoint, or a whole one. Errors of Disk.
  absl::StatusOr<std::string> SetDamagedAside(const SaveIdentity& identity) const;

  // Deletes what the policy does not keep, the oldest first, at most kMaxDeletions. FAILED_PRECONDITION while
  // in_doubt(): then it deletes nothing. Also deletes nothing if `is_read`, which is called just before, says that a
  // checkpoint is being read.
  static constexpr size_t kMaxDeletions = 16;
  Deletion Retain(const RetentionPolicy& policy, absl::FunctionRef<bool()> is_read);

 private:
  struct UnderWay {
    SaveIdentity identity;
    checkpoint::World world;
    StagingDirectory staging;
  };

  Publisher(const Disk& disk, std::string model_folder, const ModelSpec& spec)
      : disk_(disk), model_folder_(std::move(model_folder)), spec_(spec) {}
  absl::Status MakeModelFolder(const std::string& root) const;
  absl::Status FindLastSerial();
  void RemoveLeftovers();
  absl::Status CheckRoom(const checkpoint::World& world) const;
  std::string StepPath(const SaveIdentity& identity) const;
  std::string PathInFolder(const std::string& name) const;
  // Path in the staging directory of the save in progress.
  std::string PathOf(const std::string& name) const;
  // Does all up to the rename. Returns the manifest of the folder.
  absl::StatusOr<checkpoint::Manifest> Prepare(absl::Span<const PartReport> reports, checkpoint::CommonState common,
                                               const Occasion& occasion) const;
  absl::StatusOr<std::vector<checkpoint::Part>> ReadParts(absl::Span<const PartReport> reports) const;
  absl::Status WriteState(absl::Span<const PartReport> reports, checkpoint::CommonState common,
                          checkpoint::Manifest& manifest) const;
  Result Rename(const checkpoint::Manifest& manifest);
  Result AbandonFor(const absl::Status& status);

  // Constant after Open.
  const Disk disk_;
  const std::string model_folder_;
  const ModelSpec& spec_;
  Disk::Descriptor lock_;

  int64_t last_serial_ = 0;
  bool in_doubt_ = false;
  absl::Status leftovers_;
  std::optional<UnderWay> under_way_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_PUBLISHER_H_
