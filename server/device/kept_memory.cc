#include "server/device/kept_memory.h"

#include <sys/stat.h>

#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

// Does not occur in names of models.
constexpr char kSeparator = '\0';

std::string PrefixOf(const std::string& model) { return model + kSeparator; }

}  // namespace

KeptMemory::KeptMemory(std::string model, KeptStore* store)
    : model_(std::move(model)), store_(store), adopted_(false) {}

KeptMemory::KeptMemory(std::string model, KeptStore* store, KeptStore::Descriptors pieces)
    : model_(std::move(model)), store_(store), adopted_(true), unclaimed_(std::move(pieces)) {}

absl::StatusOr<const Memory*> KeptMemory::Piece(const std::string& name, int64_t size_bytes, ComputeDevice& device) {
  RETURN_IF_ERROR(CheckNew(name));
  if (size_bytes == 0) return Add(name, Memory());  // nothing to keep
  if (adopted_) {
    ASSIGN_OR_RETURN(wire::FileDescriptor fd, TakeDescriptor(name));
    ASSIGN_OR_RETURN(Memory memory, device.Adopt(LongName(name), size_bytes, std::move(fd)));
    return Add(name, std::move(memory));
  }
  ASSIGN_OR_RETURN(Memory memory, device.Allocate(MemoryName(name), size_bytes, Sharing::kKept));
  return Keep(name, std::move(memory));
}

absl::StatusOr<const Memory*> KeptMemory::HostPiece(const std::string& name, int64_t size_bytes) {
  RETURN_IF_ERROR(CheckNew(name));
  if (adopted_) {
    ASSIGN_OR_RETURN(wire::FileDescriptor fd, TakeDescriptor(name));
    ASSIGN_OR_RETURN(Memory memory, Memory::Adopt(LongName(name), size_bytes, std::move(fd)));
    return Add(name, std::move(memory));
  }
  ASSIGN_OR_RETURN(Memory memory, Memory::Allocate(MemoryName(name), size_bytes, Sharing::kKept));
  return Keep(name, std::move(memory));
}

absl::Status KeptMemory::KeepText(const std::string& name, absl::string_view text) {
  RETURN_IF_ERROR(CheckNew(name));
  ASSIGN_OR_RETURN(Memory memory,
                   Memory::Allocate(MemoryName(name), static_cast<int64_t>(text.size()), Sharing::kKept));
  std::memcpy(memory.data(), text.data(), text.size());
  return Keep(name, std::move(memory)).status();
}

absl::StatusOr<const Memory*> KeptMemory::AdoptHostPiece(const std::string& name) {
  RETURN_IF_ERROR(CheckNew(name));
  ASSIGN_OR_RETURN(wire::FileDescriptor fd, TakeDescriptor(name));
  // Adopted memory is sealed, and does not change its size afterwards.
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) info.st_size = -1;
  ASSIGN_OR_RETURN(Memory memory, Memory::Adopt(LongName(name), info.st_size, std::move(fd)));
  return Add(name, std::move(memory));
}

absl::Status KeptMemory::CheckNew(const std::string& name) const {
  if (pieces_.find(name) == pieces_.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("memory of ", LongName(name), ": requested twice"));
}

absl::StatusOr<wire::FileDescriptor> KeptMemory::TakeDescriptor(const std::string& name) {
  const auto found = unclaimed_.find(name);
  if (found == unclaimed_.end()) {
    return absl::DataLossError(absl::StrCat("adopt ", LongName(name), ": kept descriptor not found"));
  }
  wire::FileDescriptor fd = std::move(found->second);
  unclaimed_.erase(found);
  return fd;
}

// Frees a piece that could not be kept: it would silently be lost with this process.
absl::StatusOr<const Memory*> KeptMemory::Keep(const std::string& name, Memory memory) {
  if (const absl::Status kept = store_->Keep(PrefixOf(model_) + name, memory.fd()); !kept.ok()) {
    return absl::Status(kept.code(), absl::StrCat("memory of ", LongName(name), ": ", kept.message()));
  }
  return Add(name, std::move(memory));
}

const Memory* KeptMemory::Add(const std::string& name, Memory memory) { return &(pieces_[name] = std::move(memory)); }

std::string KeptMemory::LongName(const std::string& name) const { return absl::StrCat(model_, ":", name); }

std::vector<std::string> KeptMemory::unclaimed() const {
  std::vector<std::string> names;
  for (const auto& [name, fd] : unclaimed_) names.push_back(name);
  return names;
}

absl::StatusOr<std::vector<std::string>> KeptMemory::DropUnclaimed() {
  std::vector<std::string> dropped;
  for (const std::string& name : unclaimed()) {
    const auto longer = pieces_.lower_bound(name);
    if (longer != pieces_.end() && absl::StartsWith(longer->first, name)) continue;
    RETURN_IF_ERROR(DropPieces(name));
    unclaimed_.erase(name);
    dropped.push_back(name);
  }
  return dropped;
}

absl::Status KeptMemory::DropPieces(const std::string& prefix) { return store_->DropPrefix(PrefixOf(model_) + prefix); }

absl::Status KeptMemory::DropAllBut(const std::string& piece) {
  ASSIGN_OR_RETURN(const KeptStore::Descriptors kept, TakePieces(model_, *store_));
  for (const auto& [name, fd] : kept) {
    if (!absl::StartsWith(piece, name)) RETURN_IF_ERROR(DropPieces(name));
  }
  unclaimed_.clear();
  return absl::OkStatus();
}

// Takes the pieces of one model alone: those of all models may be more descriptors than a running server may open.
absl::StatusOr<KeptStore::Descriptors> KeptMemory::TakePieces(const std::string& model, KeptStore& store) {
  ASSIGN_OR_RETURN(KeptStore::Descriptors taken, store.Take(PrefixOf(model)));
  return std::move(KeptModels::Sort(std::move(taken)).models[model]);
}

absl::Status KeptMemory::Drop() {
  RETURN_IF_ERROR(store_->DropPrefix(PrefixOf(model_)));
  unclaimed_.clear();
  return absl::OkStatus();
}

KeptModels KeptModels::Sort(KeptStore::Descriptors all) {
  KeptModels sorted;
  while (!all.empty()) {
    auto piece = all.extract(all.begin());
    const std::string& name = piece.key();
    const size_t separator = name.find(kSeparator);
    if (separator == std::string::npos || separator == 0) {
      sorted.strangers.push_back(name);
    } else {
      sorted.models[name.substr(0, separator)][name.substr(separator + 1)] = std::move(piece.mapped());
    }
  }
  return sorted;
}

}  // namespace paramshard::server
