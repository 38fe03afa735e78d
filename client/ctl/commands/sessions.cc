#include "absl/strings/str_cat.h"
#include "client/ctl/cell.h"
#include "client/ctl/commands.h"
#include "client/ctl/table.h"

namespace paramshard::ctl {
namespace {

std::string SessionsText(const v1::ListSessionsResponse& response) {
  if (response.sessions().empty()) return "no sessions\n";
  Table table({Right("SESSION"), Left("MODEL"), Right("RANK"), Left("DEVICE"), Right("PID"), Right("UID"),
               Right("EPOCH"), Right("LAST COMMAND"), Left("ATTACHED AT"), Left("WAITS FOR")});
  for (const v1::SessionSummary& session : response.sessions()) {
    table.AddRow({absl::StrCat(session.session()), session.model(), absl::StrCat(session.rank()), session.device(),
                  absl::StrCat(session.pid()), absl::StrCat(session.uid()),
                  session.has_epoch() ? absl::StrCat(session.epoch()) : "-", absl::StrCat(session.last_command()),
                  TimeCell(session.attached_at()), TextCell(session.waits_for())});
  }
  return table.Text();
}

class Sessions final : public Command {
 public:
  absl::StatusOr<int> Run(const Context& context) override {
    return context.Show(&AdminClient::Stub::ListSessions, v1::ListSessionsRequest(), SessionsText);
  }
};

}  // namespace

const CommandInfo kSessions = {.name = "sessions", .help = "list the attached trainers", .create = Create<Sessions>};

}  // namespace paramshard::ctl
