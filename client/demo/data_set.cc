#include "client/demo/data_set.h"

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/demo/embedded_files.h"
#include "client/demo/gunzip.h"
#include "kernels/base/status_macros.h"

namespace paramshard::demo {
namespace {

constexpr int kMaxPixel = 16;
constexpr int kHeldOut = 5;

absl::StatusOr<int> ParseField(absl::string_view field, int limit, int64_t line, absl::string_view what) {
  int value = 0;
  if (absl::SimpleAtoi(field, &value) && value >= 0 && value <= limit) return value;
  return absl::InvalidArgumentError(
      absl::StrCat("digits line ", line, ": want ", what, " from 0 to ", limit, ", got \"", field, "\""));
}

absl::Status AppendLine(absl::string_view text, int64_t line, DataSet& set) {
  const std::vector<absl::string_view> fields = absl::StrSplit(text, ',');
  if (fields.size() != kPixels + 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("digits line ", line, ": want ", kPixels + 1, " fields, got ", fields.size()));
  }
  for (int i = 0; i < kPixels; ++i) {
    ASSIGN_OR_RETURN(const int pixel, ParseField(fields[i], kMaxPixel, line, "a pixel"));
    set.pixels.push_back(static_cast<float>(pixel) / kMaxPixel);
  }
  ASSIGN_OR_RETURN(const int label, ParseField(fields[kPixels], kClasses - 1, line, "a label"));
  set.labels.push_back(label);
  return absl::OkStatus();
}

void AppendSample(const DataSet& from, int64_t index, DataSet& to) {
  const absl::Span<const float> sample = from.sample(index);
  to.pixels.insert(to.pixels.end(), sample.begin(), sample.end());
  to.labels.push_back(from.labels[index]);
}

}  // namespace

absl::StatusOr<DataSet> ParseDigits(absl::string_view csv) {
  DataSet set;
  int64_t line = 0;
  for (absl::string_view text : absl::StrSplit(csv, '\n')) {
    ++line;
    if (text.empty()) continue;
    RETURN_IF_ERROR(AppendLine(text, line, set));
  }
  if (set.labels.empty()) return absl::InvalidArgumentError("digits: want at least one line, got none");
  return set;
}

TrainTest Split(const DataSet& all) {
  TrainTest split;
  for (int64_t i = 0; i < all.size(); ++i) {
    AppendSample(all, i, i % kHeldOut == kHeldOut - 1 ? split.test : split.train);
  }
  return split;
}

absl::StatusOr<DataSet> LoadDigits() {
  ASSIGN_OR_RETURN(const std::string csv, Gunzip(absl::MakeConstSpan(kDigitsFile, kDigitsFileBytes)));
  return ParseDigits(csv);
}

}  // namespace paramshard::demo
