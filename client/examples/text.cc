#include "client/examples/text.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/examples/embedded_files.h"
#include "client/examples/gunzip.h"
#include "kernels/base/status_macros.h"

namespace paramshard::examples {
namespace {

// The last character is only a label.
constexpr int64_t kHeldOut = 16 * 1024 + 1;

absl::StatusOr<std::vector<int>> Tokens(absl::string_view text) {
  std::vector<int> tokens;
  tokens.reserve(text.size());
  for (char character : text) {
    const int token = static_cast<unsigned char>(character);
    if (token >= kVocabulary) {
      return absl::InvalidArgumentError(
          absl::StrCat("text: want ASCII, got byte ", token, " at offset ", tokens.size()));
    }
    tokens.push_back(token);
  }
  return tokens;
}

}  // namespace

absl::StatusOr<TextSplit> SplitText(absl::string_view text, int64_t window) {
  ASSIGN_OR_RETURN(std::vector<int> tokens, Tokens(text));
  if (static_cast<int64_t>(tokens.size()) <= kHeldOut + window) {
    return absl::InvalidArgumentError(
        absl::StrCat("text: want more than ", kHeldOut + window, " characters, got ", tokens.size()));
  }
  const auto cut = tokens.end() - kHeldOut;
  Text held_out(std::vector<int>(cut, tokens.end()), window);
  tokens.erase(cut, tokens.end());
  return TextSplit{.train = Text(std::move(tokens), window), .held_out = std::move(held_out)};
}

absl::StatusOr<TextSplit> LoadText(int64_t window) {
  ASSIGN_OR_RETURN(const std::string text, Gunzip(absl::MakeConstSpan(kPersuasionFile, kPersuasionFileBytes)));
  return SplitText(text, window);
}

}  // namespace paramshard::examples
