// Where the memory of a model's state comes from.
#ifndef PARAMSHARD_SERVER_DEVICE_STATE_MEMORY_H_
#define PARAMSHARD_SERVER_DEVICE_STATE_MEMORY_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/device/compute_device.h"
#include "server/device/memory.h"

namespace paramshard::server {

// The state of one model: masters, remainders, moments, accumulators. Each piece has a name, "rank-3/master", by the
// rank in the world. Pieces belong to this object, which outlives whoever uses them. Not thread-safe.
class StateMemory {
 public:
  virtual ~StateMemory() = default;

  // Whether pieces hold what a process before this one has left in them. Else they are zeroed.
  virtual bool adopted() const = 0;

  // A piece on `device`, whose data() is null when it has 0 bytes. Asked for once. RESOURCE_EXHAUSTED, INVALID_ARGUMENT
  // a name that was asked for before; where pieces are adopted DATA_LOSS naming one that is not there or is not of that
  // size; where they are kept the errors of KeptStore::Keep.
  virtual absl::StatusOr<const Memory*> Piece(const std::string& name, int64_t size_bytes, ComputeDevice& device) = 0;
  // One in host memory, whatever the devices are, of at least a byte.
  virtual absl::StatusOr<const Memory*> HostPiece(const std::string& name, int64_t size_bytes) = 0;
};

// Memory that ends with the process.
class PrivateStateMemory final : public StateMemory {
 public:
  bool adopted() const override { return false; }
  absl::StatusOr<const Memory*> Piece(const std::string& name, int64_t size_bytes, ComputeDevice& device) override;
  absl::StatusOr<const Memory*> HostPiece(const std::string& name, int64_t size_bytes) override;

 private:
  absl::Status CheckNew(const std::string& name) const;

  std::map<std::string, Memory> pieces_;  // whose addresses stay
};

// "rank-3/master"
std::string PieceName(int world_rank, absl::string_view what);

// The name of a piece's memory in /proc.
std::string MemoryName(const std::string& piece);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DEVICE_STATE_MEMORY_H_
