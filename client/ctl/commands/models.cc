#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "client/ctl/cell.h"
#include "client/ctl/commands.h"
#include "client/ctl/table.h"

namespace paramshard::ctl {
namespace {

// Returns why no trainer can attach, else the end of the last epoch.
std::string EndText(const v1::ModelSummary& model) {
  if (!model.unusable().empty()) return model.unusable();
  if (!model.has_restoring()) return model.last_end();
  const v1::RestoreProgress& progress = model.restoring();
  return absl::StrCat("restoring, ", PercentOf(progress.done_bytes(), progress.all_bytes()), " %");
}

// Returns true if the last end is the refusal that `why_no_epoch` tells, without its code.
bool IsToldAlready(const v1::ModelSummary& model, absl::string_view end) {
  const size_t code_end = end.find(": ");
  return code_end != end.npos && absl::StrContains(model.why_no_epoch(), end.substr(code_end + 2));
}

// A daemon without a state has only the commit that it was rolled back to.
std::string RollbackText(const v1::Rollback& rollback) {
  const int64_t from = rollback.from_commit_number();
  return absl::StrCat("rolled back ", from > 0 ? absl::StrCat("from commit ", from, " ") : "", "to commit ",
                      rollback.commit_number());
}

std::string HealText(const v1::ModelSummary& model) {
  return absl::StrCat("the next epoch begins with the state of node ", model.heal_from_node());
}

std::string StateText(const v1::ModelSummary& model) {
  std::vector<std::string> texts;
  if (model.has_heal_from_node()) texts.push_back(HealText(model));
  if (!model.why_no_epoch().empty()) texts.push_back(model.why_no_epoch());
  if (model.has_rollback()) texts.push_back(RollbackText(model.rollback()));
  if (const std::string end = EndText(model); !end.empty() && !IsToldAlready(model, end)) texts.push_back(end);
  return absl::StrJoin(texts, "; ");
}

std::string RunningText(const v1::ModelSummary& model) {
  if (model.active_nodes().empty()) return YesNoCell(model.running());
  return absl::StrCat("nodes ", absl::StrJoin(model.active_nodes(), ", "));
}

std::string ModelsText(const v1::ListModelsResponse& response) {
  if (response.models().empty() && response.awaited_models().empty()) return "no models\n";
  const std::vector<Column> columns{Left("MODEL"),      Right("PARAMETERS"), Right("ELEMENTS"), Right("SHARD SIZE"),
                                    Right("ATTACHED"),  Left("ORIGIN"),      Right("VERSION"),  Right("COMMIT"),
                                    Right("SKIPPED"),   Right("EPOCH"),      Left("RUNNING"),   Left("ENGINE"),
                                    Right("IMBALANCE"), Left("LAST END")};
  Table table(columns);
  for (const v1::ModelSummary& model : response.models()) {
    table.AddRow({model.name(), absl::StrCat(model.parameter_count()), absl::StrCat(model.element_count()),
                  absl::StrCat(model.shard_size()), absl::StrCat(model.attached_ranks(), "/", model.world_size()),
                  OriginCell(model.origin()), absl::StrCat(model.version()), absl::StrCat(model.commit_number()),
                  absl::StrCat(model.skipped_commits()), model.has_epoch() ? absl::StrCat(model.epoch()) : "-",
                  RunningText(model), TextCell(model.engine()), RealCell(model.imbalance()),
                  TextCell(StateText(model))});
  }
  for (const v1::AwaitedModel& model : response.awaited_models()) {
    std::vector<std::string> row(columns.size(), "-");
    row.front() = TextCell(model.name());
    row.back() = TextCell(model.why_no_epoch());
    table.AddRow(std::move(row));
  }
  return table.Text();
}

class Models final : public Command {
 public:
  absl::StatusOr<int> Run(const Context& context) override {
    return context.Show(&AdminClient::Stub::ListModels, v1::ListModelsRequest(), ModelsText);
  }
};

}  // namespace

const CommandInfo kModels = {.name = "models", .help = "list the models", .create = Create<Models>};

}  // namespace paramshard::ctl
