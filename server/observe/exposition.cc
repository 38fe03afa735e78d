#include "server/observe/exposition.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace paramshard::server {
namespace {

constexpr double kNanosecondsPerSecond = 1e9;

// Returns the shortest text that parses to the same number, independent of the locale.
std::string NumberText(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), value).ptr;
  return std::string(text, end);
}

absl::string_view TypeName(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return "counter";
    case MetricType::kGauge:
      return "gauge";
    case MetricType::kHistogram:
      return "histogram";
  }
  return "untyped";
}

// Labels with their values: `phase="vote",le="0.1"`.
class LabelText {
 public:
  void Add(absl::string_view name, absl::string_view value) {
    absl::StrAppend(&text_, text_.empty() ? "" : ",", name, "=\"",
                    absl::StrReplaceAll(value, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}}), "\"");
  }
  std::string Text() const { return text_.empty() ? "" : absl::StrCat("{", text_, "}"); }

 private:
  std::string text_;
};

class Page {
 public:
  Page(const MetricRegistry& registry, RankCells ranks) : registry_(registry), ranks_(ranks) {}

  void AddObserved(const MetricTraits& traits) {
    for (int series = 0; series < SeriesOf(traits); ++series) {
      if (traits.metric == Metric::kRankWait && series >= ranks_.count) return;
      const LabelText labels = LabelsOf(traits, series);
      traits.type == MetricType::kHistogram ? AddHistogram(traits, series, labels)
                                            : AddLine(traits, "", labels, CountOf(traits, series));
    }
  }

  void AddSample(const MetricTraits& traits, const MetricSample& sample) {
    LabelText labels;
    for (size_t i = 0; i < sample.labels.size(); ++i) labels.Add(traits.labels[i].name, sample.labels[i]);
    AddLine(traits, "", labels, NumberText(sample.value));
  }

  std::string Take() { return std::move(text_); }

 private:
  LabelText LabelsOf(const MetricTraits& traits, int series) const {
    LabelText labels;
    if (traits.metric == Metric::kRankWait) {
      labels.Add("rank", absl::StrCat(ranks_.first_rank + series));
      return labels;
    }
    const auto& [first, second] = traits.labels;
    const int inner = second.name.empty() ? 1 : static_cast<int>(second.values.size());
    if (!first.name.empty()) labels.Add(first.name, first.values[series / inner]);
    if (!second.name.empty()) labels.Add(second.name, second.values[series % inner]);
    return labels;
  }

  std::string CountOf(const MetricTraits& traits, int series) const {
    const int64_t count = registry_.count(traits.metric, series);
    return traits.unit == "seconds" ? NumberText(static_cast<double>(count) / kNanosecondsPerSecond)
                                    : absl::StrCat(count);
  }

  // Counts are cumulative. The total is the count of the last bucket, so that both agree while counters advance.
  void AddHistogram(const MetricTraits& traits, int series, const LabelText& labels) {
    const absl::Span<const double> bounds = traits.upper_bounds_seconds;
    const int64_t sum = registry_.sum_nanoseconds(traits.metric, series);
    int64_t count = 0;
    for (int bucket = 0; bucket <= static_cast<int>(bounds.size()); ++bucket) {
      count += registry_.bucket(traits.metric, series, bucket);
      LabelText with_bound = labels;
      with_bound.Add("le", bucket < static_cast<int>(bounds.size()) ? NumberText(bounds[bucket]) : "+Inf");
      AddLine(traits, "_bucket", with_bound, absl::StrCat(count));
    }
    AddLine(traits, "_sum", labels, NumberText(static_cast<double>(sum) / kNanosecondsPerSecond));
    AddLine(traits, "_count", labels, absl::StrCat(count));
  }

  void AddLine(const MetricTraits& traits, absl::string_view suffix, const LabelText& labels,
               const std::string& value) {
    if (std::exchange(headed_, traits.name) != traits.name) {
      absl::StrAppend(&text_, "# HELP ", traits.name, " ", traits.help, "\n# TYPE ", traits.name, " ",
                      TypeName(traits.type), "\n");
    }
    absl::StrAppend(&text_, traits.name, suffix, labels.Text(), " ", value, "\n");
  }

  const MetricRegistry& registry_;
  const RankCells ranks_;
  absl::string_view headed_;  // metric of the last lines
  std::string text_;
};

}  // namespace

std::string ExpositionText(const MetricRegistry& registry, RankCells ranks, std::vector<MetricSample> samples) {
  std::sort(samples.begin(), samples.end(), [](const MetricSample& a, const MetricSample& b) {
    return std::tie(a.metric, a.labels) < std::tie(b.metric, b.labels);
  });
  Page page(registry, ranks);
  auto sample = samples.begin();
  for (const MetricTraits& traits : kMetrics) {
    if (traits.source == MetricSource::kObserved) page.AddObserved(traits);
    for (; sample != samples.end() && sample->metric == traits.metric; ++sample) page.AddSample(traits, *sample);
  }
  return page.Take();
}

}  // namespace paramshard::server
