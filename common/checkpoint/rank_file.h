// The files that a rank writes into a checkpoint: a pure function of (layout, world, rank).
//
// Rank r of a world with shard groups of S ranks is rank r % S of replica r / S. All R replicas hold each extent that
// its group rank owns; replica g saves a share of the extent: granules [g G / R, (g+1) G / R) of its G (SavedGranule).
// Arrays without rows are left out. A file is its header, then the tensors, largest elements first, then the rank's
// client state. Only the header's text depends on the client state's length, so the place of every tensor is known when
// a model is opened.
#ifndef PARAMSHARD_COMMON_CHECKPOINT_RANK_FILE_H_
#define PARAMSHARD_COMMON_CHECKPOINT_RANK_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/chunks.h"
#include "common/checkpoint/tensor_key.h"
#include "common/model/layout.h"
#include "common/model/row_range.h"
#include "common/safetensors/header.h"

namespace paramshard::checkpoint {

struct World {
  int size = 1;
  int shard_size = 1;  // divides it
  friend bool operator==(const World&, const World&) = default;
};

// Returns the rows of an extent that replica `replica` of `replicas` saves.
RowRange ShareOf(const RowRange& extent, int64_t granule, int replica, int replicas);

// One tensor of a file.
struct PlannedTensor {
  ArrayKind kind = ArrayKind::kMaster;
  int unit = 0;
  int parameter = 0;  // within the unit
  std::string key;
  safetensors::Dtype dtype = safetensors::Dtype::kF32;
  int64_t columns = 0;
  RowRange parameter_rows;  // of the parameter: what the rank saves
  RowRun run;               // of the array, in the file
};

// One file of a rank.
class PlannedFile {
 public:
  const std::string& name() const { return name_; }  // "rank-00003-of-00008.safetensors"
  int world_rank() const { return world_rank_; }
  // In the order of their data; without the client state.
  const std::vector<PlannedTensor>& tensors() const { return tensors_; }

  // Bytes before the first tensor, with any client state: the header's length, its text, spaces. A multiple of 8.
  int64_t header_bytes() const { return header_bytes_; }
  // Bytes of the header and all tensors. The client state begins here, if the file takes one.
  int64_t state_bytes() const { return state_bytes_; }
  int64_t chunk_bytes() const { return ChunkBytesFor(state_bytes_); }
  // True for the last file of a rank.
  bool takes_client_state() const { return takes_client_state_; }
  int64_t size_bytes(int64_t client_state_bytes) const {
    return state_bytes_ + (takes_client_state_ ? client_state_bytes : 0);
  }

  // Returns the first header_bytes() of the file. A client state has at most kMaxClientStateBytes; an empty one is not
  // stored as a tensor.
  std::string Header(int64_t client_state_bytes) const;
  // Returns the chunks of all tensors, one for each sum of the file. A client state with bytes is the last chunk.
  std::vector<RowRun> Chunks(int64_t client_state_bytes) const;

 private:
  friend class RankFilePlan;

  safetensors::Header MakeHeader(int64_t client_state_bytes) const;
  void Place();

  std::string name_;
  int world_rank_ = 0;
  bool takes_client_state_ = false;
  std::vector<PlannedTensor> tensors_;
  int64_t header_bytes_ = 0;
  int64_t state_bytes_ = 0;
};

// The files of a rank: one, or as many as the limit of headers needs. Immutable.
class RankFilePlan {
 public:
  // Longest header of a file; more tensors go to a further file. Readers accept up to 100 MB.
  static constexpr int64_t kMaxHeaderBytes = int64_t{64} << 20;

  // `rank` is in [0, world.size). INVALID_ARGUMENT unless the layout is cut over world.shard_size ranks, which divides
  // the world's size.
  static absl::StatusOr<RankFilePlan> Create(const Layout& layout, const World& world, int rank,
                                             int64_t max_header_bytes = kMaxHeaderBytes);

  const std::vector<PlannedFile>& files() const { return files_; }
  // Bytes of all files, without the client state.
  int64_t state_bytes() const;

 private:
  std::vector<PlannedFile> files_;
};

// Returns an upper bound of the bytes that a tensor of this key adds to the header of a file with FileMetadata.
int64_t MaxEntryBytes(const std::string& key);

// "rank-00003-of-00008.safetensors"; the files after the first are "rank-00003-of-00008-1.safetensors" and on.
std::string RankFileName(int rank, int world_size, int index);

// The metadata of a file whose tensors begin at these rows of whole tensors. It holds {key: {"saved_offsets": [row,
// 0]}}, by which torch.distributed.checkpoint reads sharded safetensors. A tensor of one dimension has one offset.
struct SavedOffset {
  std::string key;
  int64_t first_row = 0;
  int dimensions = 2;
};
safetensors::Metadata FileMetadata(const std::vector<SavedOffset>& offsets);

// Returns where the rows of a file's tensors lie, in the order of their data, which begins at `header_bytes`, in chunks
// of `chunk_bytes`. The file may be of any origin. INVALID_ARGUMENT naming the tensor: it has no bytes, or neither 1
// nor 2 dimensions, or not exactly one entry of offsets, or offsets that are not the start of a row.
absl::StatusOr<std::vector<RowRun>> RunsOf(const safetensors::Header& header, int64_t header_bytes,
                                           int64_t chunk_bytes = kMinChunkBytes);

}  // namespace paramshard::checkpoint

#endif  // PARAMSHARD_COMMON_CHECKPOINT_RANK_FILE_H_
