#include "server/device/state_memory.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {

absl::StatusOr<const Memory*> PrivateStateMemory::Piece(const std::string& name, int64_t size_bytes,
                                                        ComputeDevice& device) {
  RETURN_IF_ERROR(CheckNew(name));
  ASSIGN_OR_RETURN(Memory memory, device.Allocate(MemoryName(name), size_bytes, Sharing::kPrivate));
  return &(pieces_[name] = std::move(memory));
}

absl::StatusOr<const Memory*> PrivateStateMemory::HostPiece(const std::string& name, int64_t size_bytes) {
  RETURN_IF_ERROR(CheckNew(name));
  ASSIGN_OR_RETURN(Memory memory, Memory::Allocate(MemoryName(name), size_bytes, Sharing::kPrivate));
  return &(pieces_[name] = std::move(memory));
}

absl::Status PrivateStateMemory::CheckNew(const std::string& name) const {
  if (pieces_.find(name) == pieces_.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("memory of ", name, ": requested twice"));
}

std::string PieceName(int world_rank, absl::string_view what) { return absl::StrCat("rank-", world_rank, "/", what); }

std::string MemoryName(const std::string& piece) { return absl::StrCat("paramshard-", piece); }

}  // namespace paramshard::server
