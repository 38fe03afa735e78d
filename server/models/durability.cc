#include "server/models/durability.h"

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "kernels/base/status_macros.h"
#include "server/observe/log.h"

namespace paramshard::server {

absl::Status Durability::Open(const PlacedModel& model, const MovePolicy& moves, const InheritedModel* inherited,
                              std::function<absl::Status()> before_answer) {
  if (memory_ == nullptr) return absl::OkStatus();
  const JournalIdentity identity = ModelJournal::Describe(model.spec, model.layout, model.topology, moves);
  ComputeDevice& device = *model.world.devices.front();
  if (inherited == nullptr) {
    ASSIGN_OR_RETURN(journal_, ModelJournal::Create(*memory_, identity, device));
  } else {
    ASSIGN_OR_RETURN(journal_, ModelJournal::Adopt(*inherited->journal, identity, device));
  }
  journal_->BeforeAnswer(std::move(before_answer));
  return absl::OkStatus();
}

// A second deletion must not drop the memory of another model of that name. The keeper drops all pieces at once: the
// journal, to which an epoch that ends may still write, does not record it.
absl::Status Durability::DropBy(absl::FunctionRef<absl::Status(KeptMemory& memory)> drop) {
  absl::MutexLock lock(&dropping_);
  if (memory_ == nullptr || is_dropped_) return absl::OkStatus();
  RETURN_IF_ERROR(drop(*memory_));
  is_dropped_ = true;
  return absl::OkStatus();
}

absl::Status Durability::Drop() {
  return DropBy([](KeptMemory& memory) { return memory.Drop(); });
}

absl::Status Durability::DropAllBut(const std::string& piece) {
  return DropBy([&](KeptMemory& memory) { return memory.DropAllBut(piece); });
}

void Durability::Leave(absl::FunctionRef<bool()> leave) {
  absl::MutexLock lock(&dropping_);
  if (leave()) is_dropped_ = true;
}

void Durability::DropUnclaimed(const PlacedModel& model) {
  if (memory_ == nullptr) return;
  const absl::StatusOr<std::vector<std::string>> dropped = memory_->DropUnclaimed();
  if (!dropped.ok()) {
    model.log->Write(LogLevel::kWarning, "memory of a model is still kept",
                     {{"model", model.name()}, {"why", dropped.status().ToString()}});
    return;
  }
  for (const std::string& piece : *dropped) {
    model.log->Write(LogLevel::kInfo, "freed an unknown piece of a model's memory",
                     {{"model", model.name()}, {"piece", absl::CHexEscape(piece)}});
  }
}

}  // namespace paramshard::server
