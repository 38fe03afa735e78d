#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "client/ctl/cell.h"
#include "client/ctl/commands.h"
#include "client/ctl/options.h"
#include "client/ctl/table.h"
#include "paramshard/v1/admin.pb.h"

namespace paramshard::ctl {
namespace {

std::string FateText(const v1::HealNode& node) {
  switch (node.fate()) {
    case v1::HEAL_FATE_UNKNOWN:
      return "unknown: ask again if it comes with another state";
    case v1::HEAL_FATE_GIVEN:
      return "is right";
    case v1::HEAL_FATE_SAME:
      return "the same";
    case v1::HEAL_FATE_GIVEN_UP:
      return "is given up";
    case v1::HEAL_FATE_NONE:
      return absl::StrCat("none: ", node.why_none());
    default:
      return "-";
  }
}

std::string HealText(const v1::HealModelResponse& response) {
  Table table({Right("NODE"), Left("HISTORY"), Right("COMMIT"), Left("STATE")});
  for (const v1::HealNode& node : response.nodes()) {
    const bool is_known = !node.history_id().empty();
    table.AddRow({absl::StrCat(node.node()), TextCell(node.history_id()),
                  is_known ? absl::StrCat(node.commit_number()) : "-", FateText(node)});
  }
  return absl::StrCat(response.ordered() ? "the next epoch begins with the state that is right, on all nodes\n"
                                         : "nothing to do: all known nodes have the same state\n",
                      table.Text());
}

class Heal final : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    AddModelArgument(app, model_);
    app.add_option("--from", from_, "the node whose state is right; all others give up their states")
        ->required()
        ->check(CLI::NonNegativeNumber);
  }
  std::vector<std::string> Objects() const override { return {model_}; }
  absl::StatusOr<int> Run(const Context& context) override {
    v1::HealModelRequest request;
    request.set_model(model_);
    request.set_from_node(from_);
    return context.Show(&AdminClient::Stub::HealModel, request, HealText);
  }

 private:
  std::string model_;
  int from_ = -1;
};

}  // namespace

const CommandInfo kHeal = {.name = "heal",
                           .help = "choose at node 0 the node whose state is right where replicas differ",
                           .create = Create<Heal>};

}  // namespace paramshard::ctl
