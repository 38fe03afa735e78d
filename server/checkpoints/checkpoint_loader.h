// Loader of a checkpoint into the shards of a daemon's ranks, in any world.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_CHECKPOINT_LOADER_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_CHECKPOINT_LOADER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/reader.h"
#include "common/model/model_spec.h"
#include "common/model/row_range.h"
#include "common/safetensors/page_buffer.h"
#include "server/base/thread_pool.h"
#include "server/checkpoints/restore_plan.h"
#include "server/models/model.h"
#include "server/state/shard.h"

namespace paramshard::server {

// Reads every chunk that has rows of these ranks once, in the order of the files, checks its sum, and writes its rows
// into all shards that own some of them. At the end it reads the shards' memory once, and hashes its content.
//
//   ASSIGN_OR_RETURN(const checkpoint::Reader reader, checkpoint::Reader::Open(choice.path, {.owner = geteuid()}));
//   ASSIGN_OR_RETURN(RestorePlan plan, RestorePlan::Create(model.spec(), reader.spec(), {}));
//   ASSIGN_OR_RETURN(const auto loader, CheckpointLoader::Create({.reader = &reader, .plan = plan, ...}));
//   ASSIGN_OR_RETURN(const History history, model.changes().Restore(loader->restored(), [&]() -> absl::Status {
//     RETURN_IF_ERROR(loader->Load());
//     return loader->Check(loader->content(), replicas);  // of a daemon that has all ranks; else of all sums
//   }));
//
// One thread, which has the model's import lock (StateChanges::BeginImport), creates, runs and destroys it; any thread
// may call progress() and Cancel().
class CheckpointLoader {
 public:
  // Threads wait for the disk most of the time, and many disks reach their full speed only with many reads at once.
  static constexpr int kDefaultThreads = 32;

  struct Options {
    const checkpoint::Reader* reader = nullptr;  // outlives the loader
    RestorePlan plan;                            // made of the reader's spec
    const ModelSpec* spec = nullptr;             // the model's; outlives it
    std::vector<Shard*> shards = {};             // of this daemon's ranks, in their order; outlive it
    int first_rank = 0;                          // of the world
    int threads = kDefaultThreads;               // at most
  };

  // Reserves the memory for encoding planes, starts the threads, and reads everything that is not in tensors. Changes
  // nothing. INVALID_ARGUMENT for numbers that no model may have; RESOURCE_EXHAUSTED at the limits of memory and
  // threads; errors of the reader.
  static absl::StatusOr<std::unique_ptr<CheckpointLoader>> Create(Options options);
  CheckpointLoader(const CheckpointLoader&) = delete;
  CheckpointLoader& operator=(const CheckpointLoader&) = delete;
  // Frees the memory for encoding planes: call it after they have been encoded.
  ~CheckpointLoader();

  // Restored state that is not in tensors: the log of commits with the client states of this daemon's ranks, the
  // scaling book if it is kept, and the checkpoint that the history comes from.
  const RestoredState& restored() const { return restored_; }

  // Writes all rows of the shards and their step counts, but no planes of parameters with a master. Call it once. An
  // error leaves the shards torn(), unless it was cancelled before. DATA_LOSS naming file, tensor and rows; UNAVAILABLE
  // for a file that cannot be read; CANCELLED; errors of a device.
  absl::Status Load();

  // Returns true if the shards hold neither their old state nor the checkpoint: restore another one, or delete the model.
  bool torn() const { return torn_; }

  // Content hashes of all rows of these shards, after Load(). Hashes of several daemons are added up.
  const checkpoint::ContentHashes& content() const { return content_; }
  // Checks that the sums over all ranks of the world equal the checkpoint's, as far as the plan keeps its bytes. Each
  // row counts once per replica. DATA_LOSS naming the first tensor that has other bytes, or another number of rows:
  // then some daemon's shards are as good as torn.
  absl::Status Check(const checkpoint::ContentHashes& sums, int replicas) const;

  // Lets Load() return CANCELLED soon: after the chunks in progress.
  void Cancel() { cancelled_ = true; }
  // Returns OK or CANCELLED.
  absl::Status CheckContinue() const;

  // Bytes of chunks that are read, and bytes of memory that are hashed afterwards.
  struct Progress {
    int64_t done_bytes = 0;
    int64_t all_bytes = 0;
  };
  Progress progress() const { return {.done_bytes = done_bytes_, .all_bytes = all_bytes_}; }

 private:
  // A shard that owns rows of a parameter.
  struct Target {
    Shard* shard = nullptr;
    const ShardExtent* extent = nullptr;
  };
  using Targets = std::vector<Target>;

  // Unit of reading: a place of an array that is copied, or consecutive places of a tensor's elements.
  struct Piece {
    int parameter = 0;  // index into the plan's
    checkpoint::ArrayKind kind = checkpoint::ArrayKind::kMaster;
    std::optional<StateTensor> tensor = {};  // unset for an array
    std::vector<checkpoint::Reader::Place> places = {};

    RowRange rows() const {
      const checkpoint::RowRun& last = places.back().rows;
      return {places.front().rows.first_row, last.first_row + last.rows};
    }
    int64_t size_bytes() const;
  };
  // Unit of hashing: a part of an extent in a shard.
  struct ResidentPart {
    int parameter = 0;
    Target target;
    ExtentPart part;
  };

  explicit CheckpointLoader(Options options) : options_(std::move(options)) {}

  const checkpoint::Reader& reader() const { return *options_.reader; }
  const RestorePlan::Parameter& PlanOf(int parameter) const { return options_.plan.parameters()[parameter]; }
  const ParameterSpec& SavedSpec(int parameter) const;
  void FindTargets();
  void AddResident(int parameter, const Target& target);
  int64_t BytesOf(const ResidentPart& resident) const;
  void CutPieces();
  void AddPlace(const Piece& piece);
  // Returns the rows from the first to the last that a shard needs; no rows if none is needed.
  RowRange WantedOf(const Piece& piece) const;
  absl::Status MakeRoom();
  int MostThreads() const;
  absl::Status StartThreadPool();
  absl::Status ReadNumbers();
  absl::Status CheckNumbers() const;
  int64_t StepsOf(int parameter) const;
  std::vector<ScalingBook::Record> Records() const;

  absl::Status LoadAll();
  absl::Status WritePiece(const Piece& piece, safetensors::PageBuffer& buffer);
  absl::Status WriteArray(const Piece& piece, safetensors::PageBuffer& buffer) const;
  absl::Status WriteTensor(const Piece& piece) const;
  void SetSteps() const;
  absl::Status HashResident(const ResidentPart& resident);

  const Options options_;
  RestoredState restored_;
  // Constant after Create.
  std::vector<Targets> targets_;           // by index into the plan's parameters
  std::vector<int64_t> first_parameters_;  // of each unit of the saved spec: index of its first in the whole of it
  std::vector<Piece> pieces_;
  std::vector<ResidentPart> resident_;
  int64_t all_bytes_ = 0;

  std::atomic<int64_t> done_bytes_ = 0;
  std::atomic<bool> cancelled_ = false;
  std::atomic<bool> torn_ = false;
  absl::Mutex mu_;  // guards content_ while threads add to it
  checkpoint::ContentHashes content_;
  std::unique_ptr<ThreadPool> pool_;  // ends before all that its threads use
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_CHECKPOINT_LOADER_H_
