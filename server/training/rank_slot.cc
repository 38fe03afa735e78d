#include "server/training/rank_slot.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/shared_memory/futex.h"
#include "kernels/base/status_macros.h"
#include "paramshard/v1/trainer.pb.h"

namespace paramshard::server {

absl::StatusOr<RankSlotMemory> RankSlotMemory::Allocate(ComputeDevice& device, const wire::WordsCounts& counts,
                                                        int64_t slots_bytes) {
  RankSlotMemory memory;
  ASSIGN_OR_RETURN(memory.slots, device.Allocate("paramshard-slots", slots_bytes, Sharing::kReadWrite));
  ASSIGN_OR_RETURN(memory.words,
                   Memory::Allocate("paramshard-words", wire::Words::SizeBytes(counts), Sharing::kReadWrite));
  ASSIGN_OR_RETURN(memory.open_words, device.OpenHostMemory(memory.words));
  return memory;
}

wire::WordsCounts RankSlot::CountsOf(const Layout& layout) {
  return {.slots = static_cast<int>(layout.slot_offsets().size()),
          .ranks = layout.ranks(),
          .gradient_slots = static_cast<int>(layout.gradient_slot_offsets().size())};
}

void RankSlot::Take(RankSlotMemory memory, const wire::WordsCounts& counts) {
  memory_ = std::move(memory);
  words_ = wire::Words(memory_.words.data(), counts);
  ring_.emplace(words_);
}

void RankSlot::Call() {
  wakeup_.Ring();
  // A thread that cannot sleep on both wakes up sooner by this one.
  if (!wire::CanWaitForEither() && has_memory()) words_.Ring();
}

absl::StatusOr<std::vector<SentCommand>> RankSlot::ReadCommands(int most) {
  std::vector<SentCommand> commands;
  // A trainer that writes meanwhile must not keep the reader: it reads at most one ring's bytes.
  size_t bytes = 0;
  while (static_cast<int>(commands.size()) < most && bytes < wire::kRingBytes) {
    ASSIGN_OR_RETURN(const std::optional<std::string> record, ring_->Read());
    if (!record.has_value()) break;
    bytes += record->size();
    v1::Command command;
    if (!command.ParseFromString(*record)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "command ring of rank ", rank_, ": want a serialized Command, got ", record->size(), " other bytes"));
    }
    commands.emplace_back(std::move(command));
  }
  return commands;
}

void RankSlot::PublishReady(int slot, int source, int64_t number) const {
  words_.Publish(words_.ready(slot, source), static_cast<uint32_t>(number));
}

void RankSlot::PublishDrained(int slot, int64_t number) const {
  words_.Publish(words_.drained(slot), static_cast<uint32_t>(number));
}

void RankSlot::PublishAnswer(const CommitAnswer& answer) const {
  WriteAnswer(answer);
  words_.Publish(words_.committed(), static_cast<uint32_t>(answer.commit_number));
}

void RankSlot::WriteAnswer(const CommitAnswer& answer) const {
  wire::CommitRecord& record = words_.commit_record(answer.commit_number);
  record.commit_number = answer.commit_number;
  record.version = answer.version;
  record.gradient_norm = answer.gradient_norm;
  record.non_finite_count = answer.non_finite_count;
  record.skipped = answer.skipped ? 1 : 0;
}

void RankSlot::EndPage(const absl::Status& why) const {
  if (has_memory()) words_.Finish(wire::Side::kDaemon, static_cast<uint32_t>(why.code()), why.message());
}

}  // namespace paramshard::server
