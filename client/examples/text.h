// The text that the language model learns.
#ifndef PARAMSHARD_CLIENT_EXAMPLES_TEXT_H_
#define PARAMSHARD_CLIENT_EXAMPLES_TEXT_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace paramshard::examples {

// A token is one ASCII character.
inline constexpr int kVocabulary = 128;

// Consecutive characters, cut into windows: a sample is one window, and its labels are the window shifted by one
// character.
class Text {
 public:
  // `window` is at least 1.
  Text(std::vector<int> tokens, int64_t window) : tokens_(std::move(tokens)), window_(window) {}

  // Windows that have a character after them; they do not overlap.
  int64_t size() const { return tokens_.empty() ? 0 : (static_cast<int64_t>(tokens_.size()) - 1) / window_; }
  absl::Span<const int> sample(int64_t index) const { return At(index * window_); }
  absl::Span<const int> labels(int64_t index) const { return At(index * window_ + 1); }

 private:
  absl::Span<const int> At(int64_t begin) const { return absl::MakeConstSpan(tokens_).subspan(begin, window_); }

  std::vector<int> tokens_;
  int64_t window_;
};

struct TextSplit {
  Text train;
  Text held_out;
};

// Holds out about the last sixteen thousand characters: 256 windows of 64. INVALID_ARGUMENT if a character is not ASCII
// (names its offset), or nothing is left to train on.
absl::StatusOr<TextSplit> SplitText(absl::string_view text, int64_t window);

// Returns the novel that is built into the program.
absl::StatusOr<TextSplit> LoadText(int64_t window);

}  // namespace paramshard::examples

#endif  // PARAMSHARD_CLIENT_EXAMPLES_TEXT_H_
