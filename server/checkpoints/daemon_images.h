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
#include "server/checkpoints/save_folder.h"
#include "server/checkpoints/state_image.h"
#include "server/models/model.h"

namespace paramshard::server {

checkpoint::World WorldOf(const Layout& layout, const World& world);
// Returns the world that the replicas of one daemon alone make up.
checkpoint::World DaemonsOwnWorld(const Layout& layout, const World& world);

// A save goes through one image per rank: all at once, each on a thread of its own. Not thread-safe, except for the
// counters.
//
//   ASSIGN_OR_RETURN(auto images, DaemonImages::Create(model, calls, before_copy));
//   RETURN_IF_ERROR(images->Fill(state, go_on));   // steps may go on from here
//   ASSIGN_OR_RETURN(const PartReport report, images->Write(model_folder, identity, go_on));
class DaemonImages {
 public:
  // Allocates the memory for this daemon's part of a checkpoint of all daemons, or for a whole checkpoint if it saves
  // `alone`. `model` and `calls` outlive the images; `before_copy` is called before each rank of the daemon is copied.
  // Errors of StateImage::Create.
  static absl::StatusOr<std::unique_ptr<DaemonImages>> Create(Model& model, DiskCalls* calls,
                                                              std::function<void(int rank)> before_copy,
                                                              bool alone = false);

  // Called again and again; its error ends the operation.
  using GoOn = absl::FunctionRef<absl::Status()>;

  // Copies a state that the model holds, and releases it on success and on failure.
  absl::Status Fill(const Model::HeldState& state, GoOn go_on);
  // Writes what was filled into the folder of a save, which exists. Errors of SaveFolder.
  absl::StatusOr<PartReport> Write(const std::string& model_folder, const SaveIdentity& identity, GoOn go_on);

  // Bytes that are allocated; bytes of the filled files; bytes of these that were written since the last Restart.
  int64_t memory_bytes() const;
  int64_t file_bytes() const;
  int64_t written_bytes() const { return written_bytes_; }
  void Restart() { written_bytes_ = 0; }

 private:
  DaemonImages(Model& model, DiskCalls* calls, std::function<void(int rank)> before_copy)
      : model_(model), calls_(calls), before_copy_(std::move(before_copy)) {}
  int ranks() const { return static_cast<int>(images_.size()); }
  absl::Status FillRank(const Model::HeldState& state, int rank, GoOn go_on);
  absl::Status WriteRank(const SaveFolder& folder, int rank, GoOn go_on);

  // Constant after Create.
  Model& model_;
  DiskCalls* const calls_;
  const std::function<void(int rank)> before_copy_;
  std::vector<std::unique_ptr<StateImage>> images_;

  std::atomic<int64_t> written_bytes_ = 0;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_DAEMON_IMAGES_H_
