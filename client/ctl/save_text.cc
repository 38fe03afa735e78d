#include "client/ctl/save_text.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "client/ctl/cell.h"
#include "client/ctl/table.h"
#include "client/ctl/terminal_text.h"
#include "common/model/save_state_proto.h"
#include "common/rpc/durations.h"

namespace paramshard::ctl {
namespace {

std::string SecondsCell(const google::protobuf::Duration& duration) {
  return absl::StrFormat("%.3f", absl::ToDoubleSeconds(DurationFromProto(duration)));
}

}  // namespace

std::string SaveStateCell(const v1::Save& save) {
  const std::optional<SaveState> known = SaveStateFromProto(save.state());
  const std::string state = known.has_value() ? absl::StrReplaceAll(SaveStateName(*known), {{"_", " "}}) : "?";
  if (save.state() != v1::SAVE_STATE_WRITING || save.size_bytes() <= 0) return state;
  return absl::StrCat(state, " ", save.written_bytes() * 100 / save.size_bytes(), " %");
}

std::string SaveText(const v1::SaveModelResponse& response) {
  const v1::Save& save = response.save();
  std::string text = absl::StrCat("save ", save.number(), " of step ", save.step(), ": ", SaveStateCell(save));
  if (save.state() == v1::SAVE_STATE_ALREADY_SAVED) absl::StrAppend(&text, " as");
  if (!save.path().empty()) absl::StrAppend(&text, " ", TerminalText(save.path()), ", ", BytesCell(save.size_bytes()));
  if (save.has_error()) absl::StrAppend(&text, ": ", TerminalText(save.error().text()));
  return text + "\n";
}

std::string SavesText(const v1::ListSavesResponse& response) {
  std::string text;
  if (response.saves().empty()) text = "no saves\n";
  Table table({Left("MODEL"), Right("SAVE"), Right("STEP"), Left("WHY"), Left("STATE"), Right("BYTES"),
               Right("SECONDS"), Right("COPY"), Right("STALL"), Left("BEGUN"), Left("PATH"), Left("ERROR")});
  for (const v1::Save& save : response.saves()) {
    const std::optional<SaveReason> reason = SaveReasonFromProto(save.reason());
    table.AddRow({save.model(), absl::StrCat(save.number()), absl::StrCat(save.step()),
                  reason.has_value() ? SaveReasonName(*reason) : "?", SaveStateCell(save), BytesCell(save.size_bytes()),
                  SecondsCell(save.took()), SecondsCell(save.copy()), SecondsCell(save.stall()),
                  TimeCell(save.begun_at()), TextCell(save.path()), TextCell(save.error().text())});
  }
  if (text.empty()) text = table.Text();
  for (const v1::SaveCounts& counts : response.counts()) {
    absl::StrAppend(&text, TerminalText(counts.model()), ": ", counts.published(), " published, ", counts.abandoned(),
                    " abandoned, ", counts.unknown(), " unknown, ", counts.skipped(), " skipped\n");
    if (!counts.folder().empty()) {
      absl::StrAppend(&text, TerminalText(counts.model()), ": not saved: ", TerminalText(counts.folder()), "\n");
    }
    if (counts.leftovers().empty()) continue;
    absl::StrAppend(&text, TerminalText(counts.model()), ": not removed: ", TerminalText(counts.leftovers()), "\n");
  }
  return text;
}

}  // namespace paramshard::ctl
