// Node 0's side of saves: from a folder in the making to a checkpoint.
#ifndef PARAMSHARD_SERVER_SAVES_PUBLISHER_H_
#define PARAMSHARD_SERVER_SAVES_PUBLISHER_H_

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
#include "proto/checkpoint/common_state.h"
#include "proto/checkpoint/manifest.h"
#include "proto/model/model_spec.h"
#include "server/base/disk.h"
#include "server/saves/retention.h"
#include "server/saves/save_folder.h"

namespace paramshard::server {

// What a save comes to.
enum class SaveOutcome : uint8_t {
  kPublished,     // it is the latest checkpoint, and on the disk
  kAlreadySaved,  // nothing was written: a checkpoint of this state is there, and on the disk
  kAbandoned,     // it is not there, and what there was of it is removed as far as it could be
  // It has its name, and nobody knows whether it has it after the power fails: it is neither abandoned nor to be
  // counted on. Nothing is deleted until a later save is published.
  kUnknown,
};

// The one who publishes, deletes and cleans up in ROOT/MODEL: there is one of them for a folder, which a lock on
// ROOT/MODEL/lock sees to. (A file, because a file system between machines may lock folders for one machine alone.)
//
//   Begin makes the folder -> every daemon writes its part (SaveFolder) -> Publish, or Abandon
//
// Publish puts the parts together, writes common.safetensors, spec.binpb and manifest.json, syncs all, opens what is
// there as a restore would, and renames the folder to its name: the rename is the one moment in which a checkpoint
// comes to be. Whatever fails before it abandons the save. No failed fsync is made again.
//
// Not thread-safe: the save thread's. One save at a time.
class Publisher {
 public:
  // Makes ROOT/MODEL where it is not there, locks it and removes what earlier saves and deletions have left. `calls`
  // and `spec`, which is a checked one, outlive the publisher. Errors of CheckOwnFolder and Disk; FAILED_PRECONDITION
  // where another process holds the lock or the file system has none. What could not be removed is no error: see
  // leftovers().
  static absl::StatusOr<std::unique_ptr<Publisher>> Open(DiskCalls* calls, const std::string& root,
                                                         const ModelSpec& spec);

  const std::string& model_folder() const { return model_folder_; }
  // What Open, the last Begin, or an Abandon after it could not remove; OK where nothing is left.
  const absl::Status& leftovers() const { return leftovers_; }
  // Whether a rename is not known to be on the disk.
  bool in_doubt() const { return in_doubt_; }

  // Whether ROOT/MODEL is still the folder that it has locked, and nobody else's: one that was removed or replaced is
  // not, and another process may hold the lock of what is there now. Then it is to be opened again.
  bool HoldsFolder() const;

  // Makes the folder of a save, after leftovers. FAILED_PRECONDITION while another one is under way; ALREADY_EXISTS
  // where this step of this history is saved already; RESOURCE_EXHAUSTED where the file system has fewer free bytes
  // than the checkpoint will take. Nothing is left of it then.
  absl::Status Begin(const SaveIdentity& identity, const checkpoint::World& world);

  // What the manifest says besides.
  struct Occasion {
    std::optional<checkpoint::Manifest::Parent> parent = {};
    absl::Time saved_at = absl::UnixEpoch();
  };
  struct Result {
    SaveOutcome outcome = SaveOutcome::kAbandoned;
    absl::Status status = absl::OkStatus();  // why, where there is no checkpoint to be counted on
    std::string path = {};                   // of the checkpoint; empty where it is abandoned
    int64_t save_serial = 0;
    int64_t size_bytes = 0;
  };
  // Ends the save that is under way, with a report of every daemon. `common` is without step counts, which the parts
  // bring. Requires that a save is under way, and that `common` is of its step.
  Result Publish(absl::Span<const PartReport> reports, checkpoint::CommonState common, const Occasion& occasion);

  // Ends the save that is under way, if one is, and removes what there is of it. An error says what is left, as
  // leftovers() does: the next Begin tries again.
  absl::Status Abandon();

  // What there is of a step of a history, whichever process has published it: kAlreadySaved; kUnknown while in_doubt();
  // kAbandoned and why, where it is not there (NOT_FOUND), or what has its name is of another history, or damaged as far
  // as a restore sees before it reads rows.
  Result FindSaved(const SaveIdentity& identity) const;
  // Renames a damaged checkpoint, which has the name that a save of this state needs, to NAME.damaged-SAVEID: nobody
  // takes that for a checkpoint, and nobody deletes it. Returns the new path; empty where none is there, or a whole one.
  // Errors of Disk.
  absl::StatusOr<std::string> SetDamagedAside(const SaveIdentity& identity) const;

  // Deletes what the policy does not keep, the oldest first, at most kMaxDeletions. Nothing while in_doubt():
  // FAILED_PRECONDITION; nor where `is_read`, which is asked when all is ready, says that somebody reads a checkpoint.
  static constexpr size_t kMaxDeletions = 16;
  Deletion Retain(const RetentionPolicy& policy, absl::FunctionRef<bool()> is_read);

 private:
  struct UnderWay {
    SaveIdentity identity;
    checkpoint::World world;
    SaveFolder folder;
  };

  Publisher(const Disk& disk, std::string model_folder, const ModelSpec& spec)
      : disk_(disk), model_folder_(std::move(model_folder)), spec_(spec) {}
  absl::Status MakeModelFolder(const std::string& root) const;
  absl::Status FindLastSerial();
  void RemoveLeftovers();
  absl::Status CheckRoom(const checkpoint::World& world) const;
  std::string StepPath(const SaveIdentity& identity) const;
  std::string PathInFolder(const std::string& name) const;
  // In the folder of the save under way.
  std::string PathOf(const std::string& name) const;
  // All until the rename. The manifest of what is in the folder then.
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

#endif  // PARAMSHARD_SERVER_SAVES_PUBLISHER_H_
