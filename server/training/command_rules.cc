#include "server/training/command_rules.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>

#include "absl/strings/str_join.h"
#include "common/model/group_hyperparameters.h"
#include "common/model/limits.h"
#include "common/model/proto_enums.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

absl::Status CheckPositive(absl::string_view name, float value) {
  if (std::isfinite(value) && value > 0) return absl::OkStatus();
  return InvalidCommand(absl::StrCat("commit, ", name), "a finite number > 0", value);
}

absl::Status CheckGather(const CommandRules& rules, const v1::Gather& gather) {
  const auto& units = rules.layout.units();
  if (gather.unit() < 0 || gather.unit() >= static_cast<int>(units.size())) {
    return InvalidCommand("gather", absl::StrCat("a unit in [0, ", units.size(), ")"), gather.unit());
  }
  const std::optional<Phase> phase = PhaseFromProto(gather.phase());
  if (!phase.has_value()) {
    return InvalidCommand("gather", "a phase", static_cast<int>(gather.phase()));
  }
  const UnitLayout& unit = units[gather.unit()];
  const auto& slots = rules.layout.slot_bytes();
  if (gather.slot() < 0 || gather.slot() >= static_cast<int>(slots.size())) {
    return InvalidCommand("gather", absl::StrCat("a slot in [0, ", slots.size(), ")"), gather.slot());
  }
  const int64_t needed = unit.slot_bytes[*phase];
  if (slots[gather.slot()] < needed) {
    return InvalidCommand(absl::StrCat("gather ", rules.spec.units[gather.unit()].name),
                          absl::StrCat("a slot of at least ", needed, " bytes"), slots[gather.slot()]);
  }
  return absl::OkStatus();
}

absl::Status CheckPush(const CommandRules& rules, const v1::Push& push) {
  const auto& units = rules.layout.units();
  if (push.unit() < 0 || push.unit() >= static_cast<int>(units.size())) {
    return InvalidCommand("push", absl::StrCat("a unit in [0, ", units.size(), ")"), push.unit());
  }
  const auto& slots = rules.layout.gradient_slot_bytes();
  if (push.slot() < 0 || push.slot() >= static_cast<int>(slots.size())) {
    return InvalidCommand("push", absl::StrCat("a gradient slot in [0, ", slots.size(), ")"), push.slot());
  }
  const std::string& name = rules.spec.units[push.unit()].name;
  const UnitLayout& unit = units[push.unit()];
  if (unit.gradient_bytes == 0) {
    return InvalidCommand(absl::StrCat("push ", name), "a unit with trainable parameters",
                          "one whose parameters are frozen");
  }
  if (slots[push.slot()] < unit.gradient_bytes) {
    return InvalidCommand(absl::StrCat("push ", name),
                          absl::StrCat("a gradient slot of at least ", unit.gradient_bytes, " bytes"),
                          slots[push.slot()]);
  }
  return rules.step_pushes.Check(push.unit());
}

absl::Status CheckCommit(const CommandRules& rules, const v1::Command& command) {
  const v1::Commit& commit = command.commit();
  if (!RepeatsCommit(command, rules.last_commit) && commit.commit_number() != rules.last_commit + 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("commit: want number ", rules.last_commit + 1, ", got ", commit.commit_number()));
  }
  if (commit.groups_size() != static_cast<int>(rules.spec.groups.size())) {
    return InvalidCommand("commit", absl::StrCat("hyper-parameters of ", rules.spec.groups.size(), " groups"),
                          commit.groups_size());
  }
  for (int i = 0; i < commit.groups_size(); ++i) {
    RETURN_IF_ERROR(CheckHyperparameters(i, HyperparametersFromProto(commit.groups(i))));
  }
  if (commit.has_max_grad_norm()) RETURN_IF_ERROR(CheckPositive("maximal gradient norm", commit.max_grad_norm()));
  if (commit.has_gradient_scale()) RETURN_IF_ERROR(CheckPositive("gradient scale", commit.gradient_scale()));
  if (commit.reader_data().size() > kMaxReaderDataBytes) {
    return InvalidCommand("commit, data for readers", absl::StrCat("at most ", kMaxReaderDataBytes, " bytes"),
                          commit.reader_data().size());
  }
  if (!commit.save() || rules.may_save) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("commit ", commit.commit_number(), ": --save-dir is required for saves"));
}

}  // namespace

absl::Status InvalidCommand(absl::string_view what, absl::string_view expected, const absl::AlphaNum& got) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": want ", expected, ", got ", got));
}

bool RepeatsCommit(const v1::Command& command, int64_t last_commit) {
  return command.has_commit() && command.commit().commit_number() == last_commit && last_commit > 0;
}

absl::Status CheckAbsent(const CommandRules& rules, const v1::Push& push, absl::Span<const int32_t> absent) {
  const UnitSpec& unit = rules.spec.units[push.unit()];
  const int count = static_cast<int>(unit.parameters.size());
  const bool ascending = std::adjacent_find(absent.begin(), absent.end(), std::greater_equal<>()) == absent.end();
  if (absent.empty() || (ascending && absent.front() >= 0 && absent.back() < count)) return absl::OkStatus();
  return InvalidCommand(absl::StrCat("push ", unit.name),
                        absl::StrCat("absent parameters ascending in [0, ", count, ")"), absl::StrJoin(absent, ", "));
}

absl::Status CheckCommand(const CommandRules& rules, const v1::Command& command) {
  switch (command.kind_case()) {
    case v1::Command::kGather:
      return CheckGather(rules, command.gather());
    case v1::Command::kPush:
      return CheckPush(rules, command.push());
    case v1::Command::kCommit:
      return CheckCommit(rules, command);
    case v1::Command::kDiscard:
      return absl::OkStatus();
    case v1::Command::KIND_NOT_SET:
      break;
  }
  return InvalidCommand(absl::StrCat("command ", command.number()), "a gather, push, commit or discard", "none");
}

}  // namespace paramshard::server
