#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/ctl/cell.h"
#include "client/ctl/commands.h"
#include "client/ctl/options.h"
#include "client/ctl/terminal_text.h"
#include "common/checkpoint/step_folder.h"
#include "common/rpc/durations.h"

namespace paramshard::ctl {
namespace {

// Returns true for names that the daemon looks for in its --save-dir. Other texts are paths.
bool NamesSavedStep(const std::string& text) {
  const bool is_number = !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  return text == "latest" || is_number || checkpoint::ParseStepFolderName(text).has_value();
}

std::string SummaryText(const v1::RestoreSummary& summary) {
  return absl::StrFormat("step %d, version %d, of %s, saved by %d ranks in shard groups of %d\n%s in %s, history %s\n",
                         summary.step(), summary.version(), TerminalText(summary.path()), summary.saved_world_size(),
                         summary.saved_shard_size(), BytesCell(summary.size_bytes()),
                         DurationCell(DurationFromProto(summary.elapsed())), TerminalText(summary.history_id()));
}

class Restore final : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    AddModelArgument(app, model_);
    app.add_option(
           "checkpoint", checkpoint_,
           "latest, a step or a checkpoint's name in the daemon's --save-dir, or a checkpoint's folder (default: "
           "latest)")
        ->check(IsNotEmpty);
    app.add_flag("--convert-moments", convert_moments_,
                 "convert moments that are saved in another type, which loses bits");
    app.add_flag("--quiet", quiet_, "no progress");
  }
  std::vector<std::string> Objects() const override { return {model_, checkpoint_}; }
  absl::StatusOr<int> Run(const Context& context) override;

 private:
  v1::RestoreModelRequest Request() const;
  void ShowProgress(const v1::RestoreProgress& progress, std::ostream* out);

  std::string model_;
  std::string checkpoint_ = "latest";
  bool convert_moments_ = false;
  bool quiet_ = false;
  int64_t shown_percent_ = -1;
};

v1::RestoreModelRequest Restore::Request() const {
  v1::RestoreModelRequest request;
  request.set_model(model_);
  request.mutable_source()->set_checkpoint(checkpoint_);
  request.mutable_source()->set_convert_moments(convert_moments_);
  // The daemon has another working directory.
  std::error_code error;
  if (!NamesSavedStep(checkpoint_)) {
    request.mutable_source()->set_checkpoint(std::filesystem::absolute(checkpoint_, error).string());
  }
  return request;
}

void Restore::ShowProgress(const v1::RestoreProgress& progress, std::ostream* out) {
  const int64_t percent = PercentOf(progress.done_bytes(), progress.all_bytes());
  if (out == nullptr || percent == shown_percent_) return;
  shown_percent_ = percent;
  *out << "\r\x1b[K" << BytesCell(progress.done_bytes()) << " of " << BytesCell(progress.all_bytes()) << std::flush;
}

absl::StatusOr<int> Restore::Run(const Context& context) {
  ASSIGN_OR_RETURN(AdminClient client, context.Connect());
  std::ostream* const progress = quiet_ ? nullptr : context.streams().progress;
  std::optional<v1::RestoreSummary> summary;
  const absl::Status status = client.ReadAll<v1::RestoreModelRequest, v1::RestoreModelResponse>(
      &AdminClient::Stub::RestoreModel, Request(), [&](const v1::RestoreModelResponse& response) {
        if (response.has_progress()) ShowProgress(response.progress(), progress);
        if (response.has_summary()) summary = response.summary();
      });
  if (shown_percent_ >= 0) *progress << "\r\x1b[K" << std::flush;
  RETURN_IF_ERROR(status);
  if (!summary.has_value()) return absl::InternalError("the stream ended without a summary");
  return context.Write(*summary, SummaryText);
}

}  // namespace

const CommandInfo kRestore = {
    .name = "restore", .help = "replace a model's whole state with a checkpoint's", .create = Create<Restore>};

}  // namespace paramshard::ctl
