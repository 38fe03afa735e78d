#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/ctl/commands.h"
#include "client/ctl/terminal_text.h"

namespace paramshard::ctl {
namespace {

// Returns the metrics with control characters escaped.
std::string MetricsText(const v1::GetMetricsResponse& response) {
  std::string text;
  for (const absl::string_view line : absl::StrSplit(response.text(), '\n', absl::SkipEmpty())) {
    absl::StrAppend(&text, TerminalText(line), "\n");
  }
  return text;
}

class Metrics final : public Command {
 public:
  absl::StatusOr<int> Run(const Context& context) override {
    return context.Show(&AdminClient::Stub::GetMetrics, v1::GetMetricsRequest(), MetricsText);
  }
};

}  // namespace

const CommandInfo kMetrics = {.name = "metrics",
                              .help = "print the daemon's metrics, in Prometheus' text format",
                              .has_comments = true,
                              .create = Create<Metrics>};

}  // namespace paramshard::ctl
