// A model's folder of checkpoints, which node 0 opens when it can, and writes one save after the other to.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_CHECKPOINT_FOLDER_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_CHECKPOINT_FOLDER_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/checkpoint/manifest.h"
#include "server/base/disk_calls.h"
#include "server/checkpoints/publisher.h"
#include "server/checkpoints/retention.h"
#include "server/checkpoints/staging_directory.h"
#include "server/models/model.h"
#include "server/models/model_saver.h"

namespace paramshard::server {

// Used by one thread, except IsSaved and AddTo.
class CheckpointFolder {
 public:
  struct Options {
    std::string root;  // of checkpoints
    RetentionPolicy keep = {};
    DiskCalls* calls = nullptr;  // outlives the folder
    std::function<absl::Time()> now;
  };
  // `model` outlives the folder.
  CheckpointFolder(const Model& model, Options options) : model_(model), options_(std::move(options)) {}

  // Errors of Publisher::Open; every save tries again.
  absl::Status Open();
  // Gives up the folder's lock.
  void Close() { publisher_.reset(); }

  // Writes the parts of all daemons into the staging directory, and returns a report of each.
  using PartsWriter = absl::FunctionRef<absl::StatusOr<std::vector<PartReport>>()>;
  // Publishes a checkpoint, then deletes old ones, so that its caller finds them gone. The save succeeds even if they
  // cannot be deleted.
  SaveEnd Save(const SaveIdentity& identity, const HeldState& state, const checkpoint::World& world, PartsWriter write);

  // Returns true if this state is known to have a checkpoint.
  bool IsSaved(const StateNumbers& numbers) const;
  // Adds what is wrong with the folder.
  void AddTo(SaveCounts& counts) const;

 private:
  SaveEnd Publish(const SaveIdentity& identity, const HeldState& state, const checkpoint::World& world,
                  PartsWriter write);
  void Retain();
  // Takes over the publisher's leftovers(), and logs them if they have changed.
  void NoteLeftovers();

  const Model& model_;
  const Options options_;
  std::unique_ptr<Publisher> publisher_;  // null while the folder cannot be opened

  mutable absl::Mutex mu_;
  std::optional<StateNumbers> saved_ ABSL_GUARDED_BY(mu_);  // of the last checkpoint that is known
  absl::Status leftovers_ ABSL_GUARDED_BY(mu_);
  absl::Status opened_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_CHECKPOINT_FOLDER_H_
