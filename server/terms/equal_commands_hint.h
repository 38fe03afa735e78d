// Advice for ranks that gather or push different units where they must not.
#ifndef PARAMSHARD_SERVER_TERMS_EQUAL_COMMANDS_HINT_H_
#define PARAMSHARD_SERVER_TERMS_EQUAL_COMMANDS_HINT_H_

#include "absl/strings/string_view.h"

namespace paramshard::server {

// Appended to errors that name both commands. Engines between daemons make the same calls on all ranks.
inline constexpr absl::string_view kEqualCommandsHint =
    "; ranks of several daemons, or with --local-engine=mesh, gather and push the same units in the same order: run "
    "each "
    "unit on every rank (add 0 times its output), or train in one daemon";

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TERMS_EQUAL_COMMANDS_HINT_H_
