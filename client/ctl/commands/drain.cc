#include "client/ctl/commands.h"
#include "paramshard/v1/admin.pb.h"

namespace paramshard::ctl {
namespace {

std::string DrainText(const v1::DrainResponse&) { return "draining\n"; }

class Drain final : public Command {
 public:
  absl::StatusOr<int> Run(const Context& context) override {
    return context.Show(&AdminClient::Stub::Drain, v1::DrainRequest(), DrainText);
  }
};

}  // namespace

const CommandInfo kDrain = {.name = "drain", .help = "stop the daemon as SIGTERM does", .create = Create<Drain>};

}  // namespace paramshard::ctl
