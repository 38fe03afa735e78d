#include "common/checkpoint/damage.h"

#include "absl/strings/str_cat.h"
#include "common/safetensors/header.h"

namespace paramshard::checkpoint {

absl::Status Damage::ToStatus(const std::string& folder) const {
  std::string text = folder;
  if (!file.empty()) absl::StrAppend(&text, "/", safetensors::NameText(file));
  if (!tensor.empty()) absl::StrAppend(&text, ": tensor ", safetensors::NameText(tensor));
  if (rows.has_value()) absl::StrAppend(&text, ": rows [", rows->begin, ", ", rows->end, ")");
  return absl::Status(code, absl::StrCat(text, ": ", message));
}

}  // namespace paramshard::checkpoint
