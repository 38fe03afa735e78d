#include "client/ctl/encoding.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/weights/quantized_tensor.h"
#include "kernels/formats/format.h"

namespace paramshard::ctl {

Encoding MakeEncoding(Format format, std::optional<ElementType> element, std::optional<bool> power_of_two_scales) {
  return {format, element.value_or(DefaultElement(format)),
          power_of_two_scales.value_or(DefaultPowerOfTwoScales(format))};
}

std::string EncodingText(const Encoding& encoding) {
  if (weights::IsPlain(encoding.format)) return std::string(FormatName(encoding.format));
  return absl::StrCat(FormatName(encoding.format), " ", ElementTypeName(encoding.element));
}

absl::StatusOr<bool> ParseBool(absl::string_view text) {
  if (text == "true") return true;
  if (text == "false") return false;
  return absl::InvalidArgumentError(absl::StrCat("want true or false, got ", text));
}

}  // namespace paramshard::ctl
