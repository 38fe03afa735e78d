#include "client/ctl/text_lines.h"

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/safetensors/regular_file.h"
#include "kernels/base/status_macros.h"

namespace paramshard::ctl {
namespace {

constexpr int64_t kMaxBytes = 64 << 20;

}  // namespace

absl::StatusOr<std::vector<TextLine>> ReadTextLines(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string contents, safetensors::ReadWholeFile(path, kMaxBytes));
  std::vector<TextLine> lines;
  int number = 0;
  for (const absl::string_view text : absl::StrSplit(contents, '\n')) {
    const std::string place = absl::StrCat(path, ":", ++number);
    const absl::string_view line = absl::StripAsciiWhitespace(text);
    if (line.empty() || line[0] == '#') continue;
    const size_t cut = line.rfind(": ");
    if (cut == 0 || cut == absl::string_view::npos) {
      return absl::InvalidArgumentError(absl::StrCat(place, ": want two texts with \": \" between them"));
    }
    lines.push_back({std::string(absl::StripAsciiWhitespace(line.substr(0, cut))),
                     std::string(absl::StripAsciiWhitespace(line.substr(cut + 2))), place});
  }
  return lines;
}

}  // namespace paramshard::ctl
