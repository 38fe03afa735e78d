// The images of all ranks of one daemon, which it copies and writes in a save.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_DAEMON_IMAGES_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_DAEMON_IMAGES_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/rank_file.h"
#include "server/base/disk_calls.h"
#include "server/checkpoints/staging_directory.h"
#include "server/checkpoints/state_image.h"
#include "server/models/model.h"

namespace paramshard::server {

checkpoint::World WorldOf(const Layout& layout, const World& world);

// A save goes through one image per rank: all at once, each on a thread of its own. Not thread-safe, except for the
// counters.
//
//   ASSIGN_OR_RETURN(auto images, DaemonImages::Create(model, calls, before_copy));
//   RETURN_IF_ERROR(images->Fill(state, check));   // steps may go on from here
//   ASSIGN_OR_RETURN(const PartReport report, images->Write(model_folder, identity, check));
class DaemonImages {
 public:
  // Allocates the memory for this daemon's part of a checkpoint of all daemons. `model` and `calls` outlive the images;
  // `before_copy` is called before each rank of the daemon is copied. Errors of StateImage::Create.
  static absl::StatusOr<std::unique_ptr<DaemonImages>> Create(Model& model, DiskCalls* calls,
                                                              std::function<void(int rank)> before_copy);
  // Chooses between this daemon's part and a whole checkpoint of a daemon that saves `alone`. The memory for the latter
  // is allocated for the first save alone, and freed for the next save of all daemons. Errors of StateImage::Create.
  absl::Status Select(bool alone);
  // Returns the world that the checkpoint is of: alone, the one that this daemon's replicas make up.
  checkpoint::World world() const { return WorldFor(alone()); }

  // Called again and again; its error ends the operation.
  using CheckContinue = absl::FunctionRef<absl::Status()>;

  // Copies a state that the model holds, and releases it on success and on failure.
  absl::Status Fill(const HeldState& state, CheckContinue check);
  // Writes what was filled into the staging directory of a save, which exists. Errors of StagingDirectory.
  absl::StatusOr<PartReport> Write(const std::string& model_folder, const SaveIdentity& identity, CheckContinue check);

  // Bytes of the filled files.
  int64_t file_bytes() const;
  // Bytes that are allocated; bytes of the filled files that were written since the last Restart. Thread-safe.
  int64_t memory_bytes() const { return memory_bytes_; }
  int64_t written_bytes() const { return written_bytes_; }
  void Restart() { written_bytes_ = 0; }

 private:
  DaemonImages(Model& model, DiskCalls* calls, std::function<void(int rank)> before_copy)
      : model_(model), calls_(calls), before_copy_(std::move(before_copy)) {}
  using Images = std::vector<std::unique_ptr<StateImage>>;

  absl::StatusOr<Images> Allocate(bool alone) const;
  checkpoint::World WorldFor(bool alone) const;
  bool alone() const { return !own_images_.empty(); }
  const Images& images() const { return alone() ? own_images_ : images_; }
  int ranks() const { return static_cast<int>(images_.size()); }
  absl::Status FillRank(const HeldState& state, int rank, CheckContinue check);
  absl::Status WriteRank(const StagingDirectory& folder, int rank, CheckContinue check);

  // Constant after Create.
  Model& model_;
  DiskCalls* const calls_;
  const std::function<void(int rank)> before_copy_;
  Images images_;

  Images own_images_;  // of a daemon that saves alone
  std::atomic<int64_t> memory_bytes_ = 0;
  std::atomic<int64_t> written_bytes_ = 0;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_DAEMON_IMAGES_H_
