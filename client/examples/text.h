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

// Consecutive characters, cut into windows: a sample is one window, and its labels are the same characters one place
// further.
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

// The last sixteen thousand characters or so are held out: 256 windows of 64. INVALID_ARGUMENT naming the place of a
// character that is not ASCII, or when nothing is left to train on.
absl::StatusOr<TextSplit> SplitText(absl::string_view text, int64_t window);

// The novel that is built into the program.
absl::StatusOr<TextSplit> LoadText(int64_t window);

}  // namespace paramshard::examples

#endif  // PARAMSHARD_CLIENT_EXAMPLES_TEXT_H_
