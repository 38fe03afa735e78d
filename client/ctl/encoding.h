// Encodings in command lines and files.
#ifndef PARAMSHARD_CLIENT_CTL_ENCODING_H_
#define PARAMSHARD_CLIENT_CTL_ENCODING_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/formats/format_id.h"

namespace paramshard::ctl {

// Returns an encoding with its format's defaults for unset values.
Encoding MakeEncoding(Format format, std::optional<ElementType> element, std::optional<bool> power_of_two_scales);

// "MXFP8 E4M3"; the format alone where it has no element.
std::string EncodingText(const Encoding& encoding);

// "true" or "false"; INVALID_ARGUMENT for any other text.
absl::StatusOr<bool> ParseBool(absl::string_view text);

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_ENCODING_H_
