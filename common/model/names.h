// Names of models, units and parameters: the rule that they follow, and their form in messages.
#ifndef PARAMSHARD_COMMON_MODEL_NAMES_H_
#define PARAMSHARD_COMMON_MODEL_NAMES_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace paramshard {

inline constexpr size_t kMaxNameBytes = 512;

// Returns true if `text` is UTF-8 in its shortest form, without surrogates and nothing above U+10FFFF.
bool IsUtf8(absl::string_view text);

// INVALID_ARGUMENT "want ..., got ..." unless the name has 1 to kMaxNameBytes bytes of UTF-8 without
// NUL.
absl::Status CheckName(absl::string_view name);

// Returns any name in a form for messages: control characters and bytes that are not UTF-8 are
// escaped, a long name is cut to its first 64 bytes and its length, an empty one is "".
std::string DisplayName(absl::string_view name);

// Returns NOT_FOUND for a name that no parameter of the model has: "export m: parameter w not found".
absl::Status UnknownParameter(absl::string_view operation, absl::string_view name);

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_NAMES_H_
