#include "absl/strings/str_cat.h"
#include "client/ctl/cell.h"
#include "client/ctl/commands.h"
#include "client/ctl/table.h"
#include "common/rpc/durations.h"

namespace paramshard::ctl {
namespace {

std::string ReadersText(const v1::ListReadersResponse& response) {
  if (response.readers().empty()) return "no readers\n";
  Table table({Left("MODEL"), Right("READER"), Left("NAME"), Right("PID"), Right("UID"), Left("READING"),
               Right("SNAPSHOTS"), Right("ENDED"), Right("STEPS WAITED"), Right("MAPPED")});
  for (const v1::ReaderSummary& reader : response.readers()) {
    table.AddRow({absl::StrCat(reader.model(), reader.model_deleted()       ? " (deleted)"
                                               : reader.of_earlier_server() ? " (earlier server)"
                                                                            : ""),
                  absl::StrCat(reader.reader()), TextCell(reader.name()), absl::StrCat(reader.pid()),
                  absl::StrCat(reader.uid()), YesNoCell(reader.reading()), absl::StrCat(reader.snapshots()),
                  absl::StrCat(reader.ended_snapshots()), DurationCell(DurationFromProto(reader.held())),
                  BytesCell(reader.mapped_bytes())});
  }
  return table.Text();
}

class Readers final : public Command {
 public:
  absl::StatusOr<int> Run(const Context& context) override {
    return context.Show(&AdminClient::Stub::ListReaders, v1::ListReadersRequest(), ReadersText);
  }
};

}  // namespace

const CommandInfo kReaders = {
    .name = "readers", .help = "list the processes that read weights", .create = Create<Readers>};

}  // namespace paramshard::ctl
