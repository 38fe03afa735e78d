// Small hand-written text files of `key: value` lines.
#ifndef PARAMSHARD_CLIENT_CTL_TEXT_LINES_H_
#define PARAMSHARD_CLIENT_CTL_TEXT_LINES_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace paramshard::ctl {

// A line's key and value, without spaces around them, and its place.
struct TextLine {
  std::string key;
  std::string value;
  std::string place;  // "rules.txt:3"
};

// Returns the lines of a file: each is cut at its last ": ". Empty lines and lines that begin with # are left out.
// Errors of ReadWholeFile, which takes at most 64 MiB; INVALID_ARGUMENT also for a line without a key or value, which
// it names.
absl::StatusOr<std::vector<TextLine>> ReadTextLines(const std::string& path);

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_TEXT_LINES_H_
