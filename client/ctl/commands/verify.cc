#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/ctl/cell.h"
#include "client/ctl/commands.h"
#include "client/ctl/options.h"
#include "client/ctl/table.h"
#include "client/ctl/terminal_text.h"
#include "common/model/moment_fields.h"
#include "nlohmann/json.hpp"

namespace paramshard::ctl {
namespace {

using nlohmann::ordered_json;

std::string ExtentsText(const std::vector<v1::ExtentVerification>& extents) {
  if (extents.empty()) return "no extents on this daemon\n";
  std::vector<Column> columns = {Left("PARAMETER"), Right("RANK"), Right("FIRST ROW"),
                                 Right("ROWS"),     Left("MATCH"), Left("MASTER")};
  for (int i = 1; i <= kMomentCount; ++i) columns.push_back(Left(absl::StrCat("MOMENT ", i)));
  columns.push_back(Left("PLANES"));
  Table table(columns);
  for (const v1::ExtentVerification& extent : extents) {
    std::vector<std::string> cells = {
        extent.parameter(),          absl::StrCat(extent.rank()),      absl::StrCat(extent.first_row()),
        absl::StrCat(extent.rows()), YesNoCell(extent.planes_match()), HashCell(extent.master_hash())};
    for (const MomentTraits& moment : kMomentKinds) cells.push_back(HashCell(MomentHashIn(extent, moment.kind)));
    cells.push_back(HashCell(extent.planes_hash()));
    table.AddRow(cells);
  }
  return table.Text();
}

// One line, with the whole state hash.
std::string SummaryText(const v1::VerifySummary& summary) {
  return absl::StrCat("version ", summary.version(), ", commit ", summary.commit_number(), ": ", summary.extent_count(),
                      summary.extent_count() == 1 ? " extent, " : " extents, ", summary.mismatch_count(),
                      summary.mismatch_count() == 1 ? " mismatch" : " mismatches", ", state ",
                      TerminalText(summary.state_hash()), "\n");
}

// {"extents": [ExtentVerification ...], "summary": VerifySummary}: the stream of VerifyModel as one document. `extents`
// is left out when null.
absl::StatusOr<std::string> VerificationJsonText(const std::vector<v1::ExtentVerification>* extents,
                                                 const v1::VerifySummary& summary) {
  ordered_json document = ordered_json::object();
  if (extents != nullptr) {
    ordered_json list = ordered_json::array();
    for (const v1::ExtentVerification& extent : *extents) {
      ASSIGN_OR_RETURN(ordered_json entry, ToJson(extent));
      list.push_back(std::move(entry));
    }
    document["extents"] = std::move(list);
  }
  ASSIGN_OR_RETURN(document["summary"], ToJson(summary));
  return JsonText(document);
}

// Counts the extents of a verify on a terminal, and wipes the line at the end.
class Progress {
 public:
  explicit Progress(std::ostream* out) : out_(out) {}
  ~Progress() {
    if (out_ != nullptr && count_ > 0) *out_ << "\r\x1b[K" << std::flush;
  }

  void Step() {
    ++count_;
    if (out_ != nullptr) *out_ << "\rverified " << count_ << " extents" << std::flush;
  }

 private:
  std::ostream* out_;
  int64_t count_ = 0;
};

class Verify final : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    AddModelArgument(app, model_);
    app.add_flag("--quiet", quiet_, "the summary only");
  }
  std::vector<std::string> Objects() const override { return {model_}; }
  absl::StatusOr<int> Run(const Context& context) override;

 private:
  // Collects the extents and returns the summary.
  absl::StatusOr<v1::VerifySummary> Read(const Context& context);

  std::string model_;
  bool quiet_ = false;
  std::vector<v1::ExtentVerification> extents_;
};

absl::StatusOr<v1::VerifySummary> Verify::Read(const Context& context) {
  ASSIGN_OR_RETURN(AdminClient client, context.Connect());
  v1::VerifyModelRequest request;
  request.set_model(model_);
  Progress progress(context.streams().progress);
  std::optional<v1::VerifySummary> summary;
  RETURN_IF_ERROR(client.ReadAll<v1::VerifyModelRequest, v1::VerifyModelResponse>(
      &AdminClient::Stub::VerifyModel, request, [&](const v1::VerifyModelResponse& response) {
        if (response.has_summary()) summary = response.summary();
        if (!response.has_extent()) return;
        progress.Step();
        if (!quiet_) extents_.push_back(response.extent());
      }));
  if (!summary.has_value()) return absl::InternalError("the stream ended without a summary");
  return *summary;
}

absl::StatusOr<int> Verify::Run(const Context& context) {
  ASSIGN_OR_RETURN(const v1::VerifySummary summary, Read(context));
  if (context.options().output == Output::kTable) {
    context.streams().out << (quiet_ ? "" : ExtentsText(extents_)) << SummaryText(summary);
  } else {
    ASSIGN_OR_RETURN(const std::string json, VerificationJsonText(quiet_ ? nullptr : &extents_, summary));
    context.streams().out << json;
  }
  return summary.mismatch_count() == 0 ? kSucceeded : kMismatch;
}

}  // namespace

const CommandInfo kVerify = {.name = "verify",
                             .help = "encode planes again and compare, hash the state; exit code 4 for a mismatch",
                             .create = Create<Verify>};

}  // namespace paramshard::ctl
