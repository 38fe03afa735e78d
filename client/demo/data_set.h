// The handwritten digits that the example trains on.
#ifndef PARAMSHARD_CLIENT_DEMO_DATA_SET_H_
#define PARAMSHARD_CLIENT_DEMO_DATA_SET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace paramshard::demo {

inline constexpr int kPixels = 64;
inline constexpr int kClasses = 10;

// Samples in order: their pixels, scaled to [0, 1], one after the other, and their labels.
struct DataSet {
  std::vector<float> pixels;  // size() x kPixels
  std::vector<int> labels;

  int64_t size() const { return static_cast<int64_t>(labels.size()); }
  absl::Span<const float> sample(int64_t index) const {
    return absl::MakeConstSpan(pixels).subspan(index * kPixels, kPixels);
  }
};

struct TrainTest {
  DataSet train;
  DataSet test;
};

// Reads lines of 64 pixels (0 to 16) and a label (0 to 9), separated by commas. INVALID_ARGUMENT names the wrong line
// and field; it is also the answer to a text without samples.
absl::StatusOr<DataSet> ParseDigits(absl::string_view csv);

// Every fifth sample (4, 9, 14, ...) is held out.
TrainTest Split(const DataSet& all);

// Returns the 1,797 digits that are built into the program.
absl::StatusOr<DataSet> LoadDigits();

}  // namespace paramshard::demo

#endif  // PARAMSHARD_CLIENT_DEMO_DATA_SET_H_
