#include "absl/strings/str_cat.h"
#include "client/ctl/cell.h"
#include "client/ctl/commands.h"
#include "client/ctl/commands/broken_devices.h"
#include "client/ctl/table.h"

namespace paramshard::ctl {
namespace {

std::string MemoryText(const v1::GetMemoryResponse& response) {
  const std::string totals = absl::StrCat("total ", BytesCell(response.total_bytes()), ", resident ",
                                          BytesCell(response.resident_bytes()), "\n", BrokenDevicesText(response));
  if (response.uses().empty()) return absl::StrCat("no memory in use by models\n", totals);
  Table table({Left("DEVICE"), Left("MODEL"), Left("CLASS"), Right("SIZE")});
  for (const v1::MemoryUse& use : response.uses()) {
    table.AddRow({TextCell(use.device()), TextCell(use.model()), use.memory_class(), BytesCell(use.size_bytes())});
  }
  return absl::StrCat(table.Text(), totals);
}

class Memory final : public Command {
 public:
  absl::StatusOr<int> Run(const Context& context) override {
    return context.Show(&AdminClient::Stub::GetMemory, v1::GetMemoryRequest(), MemoryText);
  }
};

}  // namespace

const CommandInfo kMemory = {
    .name = "memory", .help = "count the bytes that the daemon holds", .create = Create<Memory>};

}  // namespace paramshard::ctl
