#include "client/ctl/text_lines.h"

#include <cerrno>
#include <fstream>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace paramshard::ctl {

absl::StatusOr<std::vector<TextLine>> ReadTextLines(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": open failed"));
  std::vector<TextLine> lines;
  int number = 0;
  for (std::string text; std::getline(file, text);) {
    const std::string place = absl::StrCat(path, ":", ++number);
    const absl::string_view line = absl::StripAsciiWhitespace(text);
    if (line.empty() || line[0] == '#') continue;
    const size_t cut = line.rfind(": ");
    if (cut == 0 || cut == absl::string_view::npos) {
      return absl::InvalidArgumentError(absl::StrCat(place, ": two texts with \": \" between them expected"));
    }
    lines.push_back({std::string(absl::StripAsciiWhitespace(line.substr(0, cut))),
                     std::string(absl::StripAsciiWhitespace(line.substr(cut + 2))), place});
  }
  if (!file.bad()) return lines;
  return absl::UnavailableError(absl::StrCat(path, ": read failed"));
}

}  // namespace paramshard::ctl
