// Rules for a single command, whatever other ranks send. Pure functions.
#ifndef PARAMSHARD_SERVER_TRAINING_COMMAND_RULES_H_
#define PARAMSHARD_SERVER_TRAINING_COMMAND_RULES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/model/layout.h"
#include "common/model/model_spec.h"
#include "common/model/step_pushes.h"
#include "paramshard/v1/trainer.pb.h"

namespace paramshard::server {

// Facts that the rules depend on.
struct CommandRules {
  const ModelSpec& spec;
  const Layout& layout;
  bool may_save = false;    // whether a commit may ask for a save
  int64_t last_commit = 0;  // the highest commit number taken
  const StepPushes& step_pushes;
};

// Returns true if the command repeats the last commit. The answer of that commit, given or to come, is its answer too.
bool RepeatsCommit(const v1::Command& command, int64_t last_commit);

// Returns INVALID_ARGUMENT if the command breaks a rule; FAILED_PRECONDITION for a commit number out of order, a save
// without may_save, or a push that is one too many (MostPushesPerStep).
absl::Status CheckCommand(const CommandRules& rules, const v1::Command& command);

// Returns INVALID_ARGUMENT unless `absent` are parameters of the unit, ascending. `push` keeps the rules above.
absl::Status CheckAbsent(const CommandRules& rules, const v1::Push& push, absl::Span<const int32_t> absent);

// Returns INVALID_ARGUMENT: "WHAT: want EXPECTED, got GOT".
absl::Status InvalidCommand(absl::string_view what, absl::string_view expected, const absl::AlphaNum& got);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_COMMAND_RULES_H_
