// Source of the memory of a model's state.
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
// rank in the world. Pieces belong to this object, which outlives their users. Not thread-safe.
class StateMemory {
 public:
  virtual ~StateMemory() = default;

  // Returns true if pieces hold the content of a previous process. Otherwise they are zeroed.
  virtual bool adopted() const = 0;

  // Returns a piece on `device`; its data() is null if it has 0 bytes. Call it once per piece. RESOURCE_EXHAUSTED;
  // INVALID_ARGUMENT for a name that was requested before; DATA_LOSS naming an adopted piece that is missing or of
  // another size; errors of KeptStore::Keep for kept pieces.
  virtual absl::StatusOr<const Memory*> Piece(const std::string& name, int64_t size_bytes, ComputeDevice& device) = 0;
  // Returns a piece of at least one byte in host memory, for devices of any kind.
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

  std::map<std::string, Memory> pieces_;  // their addresses stay
};

// Returns "rank-3/master".
std::string PieceName(int world_rank, absl::string_view what);

// Returns the name of a piece's memory in /proc.
std::string MemoryName(const std::string& piece);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DEVICE_STATE_MEMORY_H_
