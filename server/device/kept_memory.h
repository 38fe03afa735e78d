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

// The piece that says what the others are (server/journal/journal.h). It is the first that a model has.
inline constexpr char kJournalPiece[] = "journal";
// The piece of a model that is lost while it is made anew: why it was.
inline constexpr char kLostPiece[] = "lost";

// Gives every piece to the store before anybody else has it, and takes a model back from there when it is dropped.
//
//   KeptMemory memory("m", store);
//   ASSIGN_OR_RETURN(const Memory* journal, memory.HostPiece(kJournalPiece, Journal::SizeOf(shape)));
//   ...  the journal says `creating` ...
//   ASSIGN_OR_RETURN(const Memory* master, memory.Piece(PieceName(3, "master"), bytes, device));
//   ...  the server dies; the next one:
//   ASSIGN_OR_RETURN(KeptModels models, KeptModels::Sort(store->TakeAll()));
//   KeptMemory memory("m", store, std::move(models.models["m"]));
//
// Its end, a drain's too, leaves in the store what is there: a model is taken from it by Drop alone. Not thread-safe.
class KeptMemory final : public StateMemory {
 public:
  // Those of a new model. Nothing is kept under its name.
  KeptMemory(std::string model, KeptStore* store);
  // Those that are kept under the model's name, by what they are. They are mapped as they are asked for.
  KeptMemory(std::string model, KeptStore* store, KeptStore::Descriptors pieces);

  bool adopted() const override { return adopted_; }
  absl::StatusOr<const Memory*> Piece(const std::string& name, int64_t size_bytes, ComputeDevice& device) override;
  absl::StatusOr<const Memory*> HostPiece(const std::string& name, int64_t size_bytes) override;
  // One with these bytes, at least one: they are there before it is kept.
  absl::Status KeepText(const std::string& name, absl::string_view text);
  // One that has the size that it has: what it holds says which one it should have.
  absl::StatusOr<const Memory*> AdoptHostPiece(const std::string& name);

  // Names that are kept and that nobody has asked for: of pieces that the model does not have any more. None when new.
  std::vector<std::string> unclaimed() const;
  // Takes those from the store, and returns their names. One whose name another piece's begins with stays.
  absl::StatusOr<std::vector<std::string>> DropUnclaimed();
  // Takes pieces from the store whose names begin so.
  absl::Status DropPieces(const std::string& prefix);
  // Takes all that is kept under the model's name from the store, whoever has asked for it, but this piece. Others
  // whose names it begins with stay too. After an error some may be dropped, and the call may be repeated.
  absl::Status DropAllBut(const std::string& piece);

  // What the store holds of the model alone, by piece. Errors of KeptStore::Take.
  static absl::StatusOr<KeptStore::Descriptors> TakePieces(const std::string& model, KeptStore& store);

  // Takes the model from the store. Its memory ends with this object: whoever dies in between leaves nothing behind
  // that nobody knows of. An error of KeptStore::DropPrefix leaves all as it was, and the call may be repeated; what
  // was dropped may be dropped again.
  absl::Status Drop();

 private:
  absl::Status CheckNew(const std::string& name) const;
  // The descriptor of a piece that nobody has asked for yet.
  absl::StatusOr<wire::FileDescriptor> TakeDescriptor(const std::string& name);
  absl::StatusOr<const Memory*> Keep(const std::string& name, Memory memory);
  const Memory* Add(const std::string& name, Memory memory);
  // In messages.
  std::string LongName(const std::string& name) const;

  const std::string model_;
  KeptStore* const store_;
  const bool adopted_;
  KeptStore::Descriptors unclaimed_;
  std::map<std::string, Memory> pieces_;  // whose addresses stay
};

// What a keeper held, by model.
struct KeptModels {
  std::map<std::string, KeptStore::Descriptors> models;  // by name, then by piece
  std::vector<std::string> strangers;                    // names that are no model's: of another version, say

  static KeptModels Sort(KeptStore::Descriptors all);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DEVICE_KEPT_MEMORY_H_
