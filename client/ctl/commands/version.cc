#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "client/ctl/cell.h"
#include "client/ctl/commands.h"
#include "client/ctl/commands/broken_devices.h"
#include "client/ctl/table.h"
#include "client/ctl/terminal_text.h"

namespace paramshard::ctl {
namespace {

// "0..3 of 8"; "-" for a daemon that does not send it.
std::string RanksCell(const v1::GetVersionResponse& response) {
  if (response.world_size() == 0) return "-";
  const int last = response.first_rank() + response.devices_size() - 1;
  return absl::StrCat(response.first_rank(), "..", last, " of ", response.world_size());
}

// "node 2 (for 1m5s), node 3 (never here)"; only node 0 knows it.
std::string AbsentCell(const v1::GetVersionResponse& response) {
  std::vector<std::string> absent;
  for (const v1::AbsentNode& node : response.absent_nodes()) {
    const absl::Duration absent_for = absl::Seconds(node.absent_for().seconds());
    absent.push_back(
        absl::StrCat("node ", node.node(), " (",
                     node.losses() == 0 ? "never here" : absl::StrCat("for ", absl::FormatDuration(absent_for)), ")"));
  }
  return absl::StrJoin(absent, ", ");
}

// An operator must not miss these.

std::string CoordinatorText(const v1::GetVersionResponse& response) {
  if (response.node_zero_lost().empty()) return "";
  return absl::StrCat("NO EPOCH BEGINS: ", TerminalText(response.node_zero_lost()), "\n");
}

std::string HeldBackText(const v1::GetVersionResponse& response) {
  std::string text;
  for (const v1::HeldBackNode& node : response.held_back_nodes()) {
    absl::StrAppend(&text, "EXCLUDED (failures): node ", node.node(), " for ",
                    absl::FormatDuration(absl::Seconds(node.held_for().seconds())), " more, lost ", node.losses(),
                    " times\n");
  }
  return text;
}

std::string BadLinksText(const v1::GetVersionResponse& response) {
  std::string text;
  for (const std::string& link : response.bad_links()) {
    absl::StrAppend(&text, "DO NOT REACH EACH OTHER: ", TerminalText(link), "\n");
  }
  if (response.left_out_nodes_size() > 0) {
    absl::StrAppend(&text, "EXCLUDED (link): node ", absl::StrJoin(response.left_out_nodes(), ", node "), "\n");
  }
  return text;
}

std::string VersionText(const v1::GetVersionResponse& response) {
  Properties properties;
  properties.Add("daemon", response.version());
  properties.Add("build", response.build_type());
  properties.Add("devices", TextCell(absl::StrJoin(response.devices(), ", ")));
  properties.Add("node", absl::StrCat(response.node(), " of ", response.nodes()));
  if (response.absent_nodes_size() > 0) properties.Add("absent", AbsentCell(response));
  properties.Add("ranks", RanksCell(response));
  properties.Add("pid", absl::StrCat(response.pid()));
  properties.Add("started", TimeCell(response.started_at()));
  if (response.insecure_addresses_size() > 0) {
    properties.Add("in the clear", TextCell(absl::StrJoin(response.insecure_addresses(), ", ")));
  }
  return absl::StrCat(properties.Text(), CoordinatorText(response), BadLinksText(response), HeldBackText(response),
                      BrokenDevicesText(response));
}

class Version final : public Command {
 public:
  absl::StatusOr<int> Run(const Context& context) override {
    return context.Show(&AdminClient::Stub::GetVersion, v1::GetVersionRequest(), VersionText);
  }
};

}  // namespace

const CommandInfo kVersion = {
    .name = "version", .help = "show the daemon's version, build and devices", .create = Create<Version>};

}  // namespace paramshard::ctl
