#include "client/ctl/encoding.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace paramshard::ctl {

Encoding MakeEncoding(Format format, std::optional<ElementType> element, std::optional<bool> power_of_two_scales) {
  return {format, element.value_or(DefaultElement(format)),
          power_of_two_scales.value_or(DefaultPowerOfTwoScales(format))};
}

std::string EncodingText(const Encoding& encoding) {
  if (IsPlain(encoding.format)) return std::string(FormatName(encoding.format));
  return absl::StrCat(FormatName(encoding.format), " ", ElementTypeName(encoding.element));
}

bool IsPlain(Format format) { return format == Format::kFP32 || format == Format::kBF16 || format == Format::kFP16; }

absl::Status CheckFileEncoding(const Encoding& encoding) {
  if (encoding.format == Format::kFP8TensorDelayed) {
    return absl::InvalidArgumentError(
        "a format that needs no history of amaxes expected for a file, got FP8_TENSOR_DELAYED: use FP8_TENSOR_CURRENT");
  }
  return CheckEncodable(encoding);
}

absl::StatusOr<bool> ParseBool(absl::string_view text) {
  if (text == "true") return true;
  if (text == "false") return false;
  return absl::InvalidArgumentError(absl::StrCat("true or false expected, got ", text));
}

}  // namespace paramshard::ctl
