// A model's memory that outlives the server: pieces that a keeper holds too.
#ifndef PARAMSHARD_SERVER_DEVICE_KEPT_MEMORY_H_
#define PARAMSHARD_SERVER_DEVICE_KEPT_MEMORY_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/base/kept_store.h"
#include "server/device/state_memory.h"

namespace paramshard::server {

// The piece that describes the others (server/journal/journal.h). It is the first piece of a model.
inline constexpr char kJournalPiece[] = "journal";
// The piece of a lost model while it is created again: the reason of the loss.
inline constexpr char kLostPiece[] = "lost";

// Gives every piece to the store before it returns it, and removes a model from the store when it is dropped.
//
//   KeptMemory memory("m", store);
//   ASSIGN_OR_RETURN(const Memory* journal, memory.HostPiece(kJournalPiece, Journal::SizeOf(shape)));
//   ...  the journal says `creating` ...
//   ASSIGN_OR_RETURN(const Memory* master, memory.Piece(PieceName(3, "master"), bytes, device));
//   ...  the server dies; the next one:
//   ASSIGN_OR_RETURN(KeptModels models, KeptModels::Sort(store->TakeAll()));
//   KeptMemory memory("m", store, std::move(models.models["m"]));
//
// Its destructor, also in a drain, leaves the pieces in the store: only Drop removes a model. Not thread-safe.
class KeptMemory final : public StateMemory {
 public:
  // Memory of a new model. Nothing is kept under its name.
  KeptMemory(std::string model, KeptStore* store);
  // Memory that is kept under the model's name. `pieces` are the descriptors by piece; each is mapped on request.
  KeptMemory(std::string model, KeptStore* store, KeptStore::Descriptors pieces);

  bool adopted() const override { return adopted_; }
  absl::StatusOr<const Memory*> Piece(const std::string& name, int64_t size_bytes, ComputeDevice& device) override;
  absl::StatusOr<const Memory*> HostPiece(const std::string& name, int64_t size_bytes) override;
  // Keeps a piece with these bytes, at least one: they are written before it is kept.
  absl::Status KeepText(const std::string& name, absl::string_view text);
  // Adopts a piece of any size: its content says which size it should have.
  absl::StatusOr<const Memory*> AdoptHostPiece(const std::string& name);

  // Names of kept pieces that were not requested: the model does not have them any more. Empty for a new model.
  std::vector<std::string> unclaimed() const;
  // Removes these pieces from the store, and returns their names. A piece whose name is the beginning of another
  // piece's name stays.
  absl::StatusOr<std::vector<std::string>> DropUnclaimed();
  // Removes pieces from the store whose names begin with `prefix`.
  absl::Status DropPieces(const std::string& prefix);
  // Removes all pieces of the model from the store, requested or not, except `piece`. Pieces whose names are a
  // beginning of its name stay too. After an error some may be dropped, and the call may be repeated.
  absl::Status DropAllBut(const std::string& piece);

  // Returns the store's descriptors of this model alone, by piece. Errors of KeptStore::Take.
  static absl::StatusOr<KeptStore::Descriptors> TakePieces(const std::string& model, KeptStore& store);

  // Removes the model from the store. Its memory ends with this object: a process that dies in between leaves no
  // unknown memory behind. An error of KeptStore::DropPrefix changes nothing, and the call may be repeated, also after
  // success.
  absl::Status Drop();

 private:
  absl::Status CheckNew(const std::string& name) const;
  // Takes the descriptor of a piece that was not requested before.
  absl::StatusOr<wire::FileDescriptor> TakeDescriptor(const std::string& name);
  absl::StatusOr<const Memory*> Keep(const std::string& name, Memory memory);
  const Memory* Add(const std::string& name, Memory memory);
  // Returns the name for messages.
  std::string LongName(const std::string& name) const;

  const std::string model_;
  KeptStore* const store_;
  const bool adopted_;
  KeptStore::Descriptors unclaimed_;
  std::map<std::string, Memory> pieces_;  // their addresses stay
};

// Descriptors that a keeper held, by model.
struct KeptModels {
  std::map<std::string, KeptStore::Descriptors> models;  // by name, then by piece
  std::vector<std::string> strangers;                    // names of no model: of another version, say

  static KeptModels Sort(KeptStore::Descriptors all);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DEVICE_KEPT_MEMORY_H_
