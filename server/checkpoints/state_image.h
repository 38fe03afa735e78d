// The state that a rank saves, in host memory, laid out as its files.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_STATE_IMAGE_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_STATE_IMAGE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/rank_file.h"
#include "common/checkpoint/tensor_key.h"
#include "common/model/layout.h"
#include "kernels/optim/moment.h"
#include "server/device/compute_device.h"
#include "server/device/memory.h"
#include "server/state/shard.h"

namespace paramshard::server {

// The bytes of one rank's files of a checkpoint. Its memory is allocated once, when a model is opened, and reused for
// every save: fresh pages would cost more than the copy. It is registered with the rank's device, so that a GPU copies
// into it at the speed of its link without the host's processors; and left out of core dumps.
//
// Fill copies the state out of a shard between two commits, a few MiB at a time on each of some threads; nothing else
// needs the shard then. Hash reads what was copied, at any later time: reading it takes a host longer than a GPU takes
// to write it. One call at a time; several threads may read what is filled, also while it is hashed.
//
//   ASSIGN_OR_RETURN(auto image, StateImage::Create(layout, world, rank, shard.memory().device()));
//   RETURN_IF_ERROR(image->Fill(shard, client_state, [&](const Shard& s) { return pinned.Check(s); }));
//   RETURN_IF_ERROR(image->Hash(check));
//   for (int i = 0; i < image->file_count(); ++i) Write(image->file(i).name(), image->Bytes(i));
//   RETURN_IF_ERROR(image->AddTo(part));
class StateImage {
 public:
  // `layout` and `device`, the device of the rank's shard, outlive the image. RESOURCE_EXHAUSTED; errors of
  // RankFilePlan.
  static absl::StatusOr<std::unique_ptr<StateImage>> Create(
      const Layout& layout, const checkpoint::World& world, int rank, ComputeDevice& device,
      int64_t max_header_bytes = checkpoint::RankFilePlan::kMaxHeaderBytes);
  // Elements of an array that are copied at a time: 16 MiB in fp32, and whole blocks of moments.
  static constexpr int64_t kElementsOfAPart = int64_t{1} << 22;
  static_assert(kElementsOfAPart % kMomentBlockSize == 0);

  // Host memory that Create will allocate: for the model's budget.
  static int64_t SizeOf(const checkpoint::RankFilePlan& plan);

  int64_t size_bytes() const { return memory_.size_bytes(); }
  int rank() const { return rank_; }  // of the world

  // Copies the whole state of the rank: `shard` is cut by the image's layout and is this rank's shard in its group.
  // `check` is called with the shard's mutex held shared before each part is read, on any of the threads, and checks
  // that the state is still the one to be saved (PinnedState::Check): its error ends the filling, and so does an error
  // of the device. Nothing is filled then. INVALID_ARGUMENT for a client state that is too long; RESOURCE_EXHAUSTED at
  // the limit of threads.
  using Check = absl::FunctionRef<absl::Status(const Shard&)>;
  absl::Status Fill(const Shard& shard, absl::string_view client_state, Check check, int threads = 1);
  bool is_filled() const { return is_filled_; }

  // Hashes what was filled. `check` is called again and again: its error ends the hashing.
  absl::Status Hash(absl::FunctionRef<absl::Status()> check);

  // The rank's files, in order; their bytes once the image is filled.
  int file_count() const { return static_cast<int>(plan_.files().size()); }
  const checkpoint::PlannedFile& file(int index) const { return plan_.files()[index]; }
  absl::Span<const uint8_t> Bytes(int index) const;

  // Adds what was filled and hashed to the daemon's part: entries of the files, content hashes, step counts. Reads
  // masters with remainders once more. INTERNAL if ranks of the daemon differ in a step count.
  absl::Status AddTo(checkpoint::Part& part) const;

 private:
  // Place for the bytes of one planned tensor.
  struct Target {
    int file = 0;
    const checkpoint::PlannedTensor* tensor = nullptr;
    checkpoint::ArrayShape shape;
  };
  // Everything that is saved of one parameter.
  struct Share {
    int unit = 0;
    int parameter = 0;  // within the unit
    RowRange rows;
    std::vector<Target> targets = {};
  };
  // Rows that one thread copies at a time: whole rows of everything that is saved of a parameter.
  struct Piece {
    const Share* share = nullptr;
    std::vector<ExtentPart> parts = {};
  };

  StateImage(const Layout& layout, int rank, ComputeDevice& device, checkpoint::RankFilePlan plan)
      : layout_(layout), rank_(rank), device_(device), plan_(std::move(plan)) {}
  void MakeTargets();
  void Restart(absl::string_view client_state);
  uint8_t* DataOf(int file) const { return memory_.data() + file_offsets_[file]; }
  absl::Status FillSteps(const Shard& shard, Check check);
  // Returns the place in a target where rows of the parameter begin.
  uint8_t* PlaceOf(const Target& target, const RowRange& rows) const;
  absl::Status FillPiece(const Shard& shard, Check check, const Piece& piece, DeviceQueue& queue);
  // Both copy to `places`, one for each target of the share, and advance them.
  static absl::Status CopyRows(const Shard& shard, const ShardExtent& extent, const ExtentPart& part,
                               const Share& share, DeviceQueue& queue, absl::Span<uint8_t*> places);
  static absl::Status CopyPlanes(const Shard& shard, const ShardExtent& extent, const RowRange& rows,
                                 const Share& share, absl::Span<uint8_t*> places);
  void CutPieces();
  void AddClientState(absl::string_view client_state);

  // Constant after Create.
  const Layout& layout_;
  const int rank_;
  ComputeDevice& device_;
  const checkpoint::RankFilePlan plan_;
  Memory memory_;
  std::unique_ptr<Memory::Owner> leave_;  // the device's, to write there; null where it needs none
  std::vector<int64_t> file_offsets_;     // in memory_
  std::vector<size_t> chunk_counts_;      // of each file, without the client state's chunk
  std::vector<Share> shares_;             // in the order of the model
  std::vector<Piece> pieces_;

  bool is_filled_ = false;
  bool is_hashed_ = false;
  std::vector<std::vector<absl::uint128>> chunk_sums_;  // by file
  int64_t client_state_bytes_ = 0;
  std::map<std::string, int64_t> step_counts_;  // by parameter
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_STATE_IMAGE_H_
