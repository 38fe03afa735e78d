#include "server/models/replica_transfer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "common/model/state_tensor.h"
#include "kernels/base/status_macros.h"
#include "server/terms/digest.h"
#include "xxhash.h"

namespace paramshard::server {
namespace {

// Largest number of bytes that one call moves: the engine's deadline is per call, whatever the size of an array.
constexpr size_t kMostBytesOfCall = size_t{16} << 20;

using HashBytes = std::array<uint8_t, 16>;

HashBytes BytesOf(absl::uint128 hash) {
  HashBytes bytes;
  std::memcpy(bytes.data(), &hash, sizeof(hash));
  return bytes;
}

absl::uint128 HashOf(absl::Span<const uint8_t> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return absl::MakeUint128(hash.high64, hash.low64);
}

// One array of a trainable extent, or of a frozen one with a master.
struct StoredPart {
  ExtentPart part;
  StateTensor tensor = StateTensor::kMaster;
  TensorForm form = TensorForm::kElements;
};

std::vector<StoredPart> StoredParts(const Shard& shard, const ShardExtent& extent) {
  std::vector<StoredPart> stored;
  for (const ExtentPart& part : shard.extents().Parts(extent)) {
    for (const StateTensor tensor : kStateTensors) {
      for (const TensorForm form : {TensorForm::kElements, TensorForm::kRest}) {
        if (RowOf(shard.extents().Spec(extent), tensor, form).elements > 0) stored.push_back({part, tensor, form});
      }
    }
  }
  return stored;
}

bool PlanesAreState(const Shard& shard, const ShardExtent& extent) { return !shard.extents().HasMaster(extent); }

// Calls `take` with every array, in the order of the transfer.
absl::Status ForEachArray(const Shard& shard, absl::FunctionRef<absl::Status(absl::Span<const uint8_t>)> take) {
  for (const ShardExtent& extent : shard.extents()) {
    // The lock is held while an array travels: no rank steps before an epoch has begun.
    absl::ReaderMutexLock lock(&shard.mutex());
    if (PlanesAreState(shard, extent)) {
      ASSIGN_OR_RETURN(const std::vector<PlaneViews> planes, PlaneBytes(shard.memory(), extent));
      for (const PlaneViews& plane : planes) {
        for (const HostView* const view : {&plane.data, &plane.scales, &plane.amax})
          RETURN_IF_ERROR(take(view->bytes()));
      }
      continue;
    }
    for (const StoredPart& stored : StoredParts(shard, extent)) {
      ASSIGN_OR_RETURN(const HostView view,
                       shard.arrays().StoredArray(extent, stored.tensor, stored.form, stored.part));
      RETURN_IF_ERROR(take(view.bytes()));
    }
  }
  return absl::OkStatus();
}

// Packs arrays into chunks, one for each call: parameters may be many and small.
class ChunkWriter {
 public:
  explicit ChunkWriter(absl::FunctionRef<absl::Status(absl::Span<const uint8_t>)> send) : send_(send) {
    buffer_.reserve(kMostBytesOfCall);
  }

  absl::Status Put(absl::Span<const uint8_t> bytes) {
    while (!bytes.empty()) {
      const size_t now = std::min(bytes.size(), kMostBytesOfCall - buffer_.size());
      buffer_.insert(buffer_.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(now));
      bytes.remove_prefix(now);
      if (buffer_.size() == kMostBytesOfCall) RETURN_IF_ERROR(Flush());
    }
    return absl::OkStatus();
  }
  absl::Status Flush() {
    const absl::Status sent = buffer_.empty() ? absl::OkStatus() : send_(buffer_);
    buffer_.clear();
    return sent;
  }

 private:
  const absl::FunctionRef<absl::Status(absl::Span<const uint8_t>)> send_;
  std::vector<uint8_t> buffer_;
};

// Takes one array after the other out of what a ChunkWriter packs, which is `size_bytes` long.
class ChunkReader {
 public:
  ChunkReader(size_t size_bytes, absl::FunctionRef<absl::Status(absl::Span<uint8_t>)> receive,
              absl::FunctionRef<void(int64_t)> received)
      : left_(size_bytes), receive_(receive), received_(received) {}

  absl::Status Take(absl::Span<uint8_t> bytes) {
    while (!bytes.empty()) {
      if (next_ == buffer_.size()) RETURN_IF_ERROR(Fill());
      const size_t now = std::min(bytes.size(), buffer_.size() - next_);
      std::memcpy(bytes.data(), buffer_.data() + next_, now);
      next_ += now;
      bytes.remove_prefix(now);
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<uint8_t>> Take(size_t size_bytes) {
    std::vector<uint8_t> bytes(size_bytes);
    RETURN_IF_ERROR(Take(absl::MakeSpan(bytes)));
    return bytes;
  }

 private:
  absl::Status Fill() {
    buffer_.resize(std::min(left_, kMostBytesOfCall));
    left_ -= buffer_.size();
    next_ = 0;
    RETURN_IF_ERROR(receive_(absl::MakeSpan(buffer_)));
    received_(static_cast<int64_t>(buffer_.size()));
    return absl::OkStatus();
  }

  size_t left_;
  const absl::FunctionRef<absl::Status(absl::Span<uint8_t>)> receive_;
  const absl::FunctionRef<void(int64_t)> received_;
  std::vector<uint8_t> buffer_;
  size_t next_ = 0;
};

absl::Status ReceivePlanes(Shard& shard, const ShardExtent& extent, ChunkReader& reader) {
  std::vector<std::array<size_t, 3>> sizes;
  {
    absl::ReaderMutexLock lock(&shard.mutex());
    ASSIGN_OR_RETURN(const std::vector<PlaneViews> planes, PlaneBytes(shard.memory(), extent));
    for (const PlaneViews& plane : planes) sizes.push_back({plane.data.size(), plane.scales.size(), plane.amax.size()});
  }
  for (size_t plane = 0; plane < sizes.size(); ++plane) {
    ASSIGN_OR_RETURN(const std::vector<uint8_t> data, reader.Take(sizes[plane][0]));
    ASSIGN_OR_RETURN(const std::vector<uint8_t> scales, reader.Take(sizes[plane][1]));
    ASSIGN_OR_RETURN(const std::vector<uint8_t> amax, reader.Take(sizes[plane][2]));
    RETURN_IF_ERROR(shard.WritePlane(extent, plane == 0 ? Plane::kRowWise : Plane::kColumnWise, extent.rows,
                                     {.data = data, .scales = scales, .amax = amax}));
  }
  return absl::OkStatus();
}

size_t SizeOf(const Shard& shard, const ShardExtent& extent, const StoredPart& stored) {
  return stored.part.rows.size() * RowOf(shard.extents().Spec(extent), stored.tensor, stored.form).size_bytes();
}

absl::Status ReceiveStored(Shard& shard, const ShardExtent& extent, ChunkReader& reader) {
  for (const StoredPart& stored : StoredParts(shard, extent)) {
    ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes, reader.Take(SizeOf(shard, extent, stored)));
    RETURN_IF_ERROR(shard.WriteStoredRows(extent, stored.tensor, stored.form, stored.part.rows, bytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SendTensors(const Shard& shard, absl::FunctionRef<absl::Status(absl::Span<const uint8_t>)> send) {
  ChunkWriter writer(send);
  Digest digest;
  RETURN_IF_ERROR(ForEachArray(shard, [&](absl::Span<const uint8_t> bytes) {
    digest.Add(HashOf(bytes));
    return writer.Put(bytes);
  }));
  RETURN_IF_ERROR(writer.Put(BytesOf(digest.value())));
  return writer.Flush();
}

absl::Status ReceiveTensors(Shard& shard, absl::FunctionRef<absl::Status(absl::Span<uint8_t>)> receive,
                            absl::FunctionRef<void(int64_t)> received) {
  HashBytes expected;
  ChunkReader reader(TensorBytes(shard) + expected.size(), receive, received);
  for (const ShardExtent& extent : shard.extents()) {
    RETURN_IF_ERROR(PlanesAreState(shard, extent) ? ReceivePlanes(shard, extent, reader)
                                                  : ReceiveStored(shard, extent, reader));
  }
  RETURN_IF_ERROR(reader.Take(absl::MakeSpan(expected)));
  Digest digest;
  RETURN_IF_ERROR(ForEachArray(shard, [&](absl::Span<const uint8_t> bytes) {
    digest.Add(HashOf(bytes));
    return absl::OkStatus();
  }));
  if (BytesOf(digest.value()) == expected) return absl::OkStatus();
  return absl::DataLossError("the hash of the state written here differs from the hash that the other daemon sent");
}

int64_t TensorBytes(const Shard& shard) {
  int64_t bytes = 0;
  for (const ShardExtent& extent : shard.extents()) {
    if (PlanesAreState(shard, extent)) {
      bytes += PlaneSize(shard.memory(), extent);
      continue;
    }
    for (const StoredPart& stored : StoredParts(shard, extent))
      bytes += static_cast<int64_t>(SizeOf(shard, extent, stored));
  }
  return bytes;
}

}  // namespace paramshard::server
