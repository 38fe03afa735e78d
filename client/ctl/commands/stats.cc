#include "absl/strings/str_cat.h"
#include "client/ctl/cell.h"
#include "client/ctl/commands.h"
#include "client/ctl/options.h"
#include "client/ctl/table.h"

namespace paramshard::ctl {
namespace {

std::string StatsText(const v1::GetParameterStatsResponse& response) {
  if (response.parameters().empty()) return "no parameters on this daemon\n";
  Table table({Left("PARAMETER"), Left("UNIT"), Left("FORMAT"), Right("ELEMENTS"), Right("RELATIVE ERROR"),
               Right("MAX RELATIVE"), Right("AMAX"), Right("ZERO"), Right("SATURATED"), Right("NON-FINITE")});
  for (const v1::ParameterStats& stats : response.parameters()) {
    const int64_t elements = stats.element_count();
    table.AddRow({stats.parameter(), stats.unit(), FormatCell(stats.format()), absl::StrCat(elements),
                  RealCell(stats.relative_error()), RealCell(stats.max_relative_error()), RealCell(stats.amax()),
                  ShareCell(stats.zero_count(), elements), ShareCell(stats.saturated_count(), elements),
                  absl::StrCat(stats.non_finite_count())});
  }
  return absl::StrCat(table.Text(), response.parameters_size(), " of ", response.parameter_count(), " parameters\n");
}

constexpr int kMaxLimit = 10000;

class Stats final : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    AddModelArgument(app, model_);
    app.add_option("--limit", limit_, "number of parameters to show, the largest errors first (default: 20)")
        ->check(CLI::Range(1, kMaxLimit));
  }
  std::vector<std::string> Objects() const override { return {model_}; }
  absl::StatusOr<int> Run(const Context& context) override {
    v1::GetParameterStatsRequest request;
    request.set_model(model_);
    request.set_limit(limit_);
    return context.Show(&AdminClient::Stub::GetParameterStats, request, StatsText, RpcLength::kLong);
  }

 private:
  std::string model_;
  int limit_ = 20;
};

}  // namespace

const CommandInfo kStats = {.name = "stats",
                            .help = "rank a model's parameters by the error of planes against masters",
                            .create = Create<Stats>};

}  // namespace paramshard::ctl
