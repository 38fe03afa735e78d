#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/ctl/cell.h"
#include "client/ctl/checkpoint_text.h"
#include "client/ctl/commands.h"
#include "client/ctl/table.h"
#include "common/checkpoint/verification.h"

namespace paramshard::ctl {
namespace {

using checkpoint::Damage;
using checkpoint::Verification;

std::string DamagesText(const Verification& verification) {
  std::string text;
  if (!verification.ok()) {
    Table table({Left("FILE"), Left("TENSOR"), Right("FIRST ROW"), Right("ROWS"), Left("DAMAGE")});
    for (const Damage& damage : verification.damages) {
      table.AddRow({TextCell(damage.file), TextCell(damage.tensor),
                    damage.rows.has_value() ? absl::StrCat(damage.rows->begin) : "-",
                    damage.rows.has_value() ? absl::StrCat(damage.rows->size()) : "-", damage.message});
    }
    text = table.Text();
  }
  if (verification.manifest.has_value()) {
    absl::StrAppend(&text, "step ", verification.manifest->step, ", version ", verification.manifest->version, ": ");
  }
  absl::StrAppend(&text, verification.tensor_count, verification.tensor_count == 1 ? " tensor, " : " tensors, ",
                  BytesCell(verification.read_bytes), " read, ",
                  verification.ok() ? "no damage" : absl::StrCat("damage in ", verification.damages.size()),
                  verification.ok()                  ? "\n"
                  : verification.damages.size() == 1 ? " place\n"
                                                     : " places\n");
  return text;
}

nlohmann::ordered_json DamagesJson(const std::string& folder, const Verification& verification) {
  nlohmann::ordered_json json = {{"folder", folder}};
  if (verification.manifest.has_value()) json = CheckpointJson(folder, *verification.manifest);
  auto damages = nlohmann::ordered_json::array();
  for (const Damage& damage : verification.damages) {
    nlohmann::ordered_json entry = {{"file", damage.file}};
    if (!damage.tensor.empty()) entry["tensor"] = damage.tensor;
    if (damage.rows.has_value()) {
      entry["firstRow"] = absl::StrCat(damage.rows->begin);
      entry["rows"] = absl::StrCat(damage.rows->size());
    }
    entry["damage"] = damage.message;
    damages.push_back(std::move(entry));
  }
  json["tensorCount"] = absl::StrCat(verification.tensor_count);
  json["readBytes"] = absl::StrCat(verification.read_bytes);
  json["damages"] = std::move(damages);
  return json;
}

class CheckpointVerify final : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    AddFolderArgument(app, folder_, "the folder of a checkpoint");
    app.add_flag("--quiet", quiet_, "no progress");
  }
  std::vector<std::string> Objects() const override { return {folder_}; }
  absl::StatusOr<int> Run(const Context& context) override;

 private:
  std::string folder_;
  bool quiet_ = false;
};

absl::StatusOr<int> CheckpointVerify::Run(const Context& context) {
  std::ostream* const progress = quiet_ ? nullptr : context.streams().progress;
  int64_t shown_percent = -1;
  const Verification verification =
      checkpoint::VerifyCheckpoint(folder_, {}, [&](int64_t done_bytes, int64_t all_bytes) {
        const auto percent =
            static_cast<int64_t>(100.0 * static_cast<double>(done_bytes) / static_cast<double>(all_bytes));
        if (progress == nullptr || percent == shown_percent) return;
        shown_percent = percent;
        *progress << "\r\x1b[K" << BytesCell(done_bytes) << " of " << BytesCell(all_bytes) << std::flush;
      });
  if (shown_percent >= 0) *progress << "\r\x1b[K" << std::flush;
  // A folder that is no checkpoint of this format, or cannot be opened, is not damaged.
  const bool is_checkpoint = verification.manifest.has_value() || verification.ok() ||
                             verification.damages.front().code == absl::StatusCode::kDataLoss;
  if (!is_checkpoint) return verification.damages.front().ToStatus(folder_);
  const bool as_table = context.options().output == Output::kTable;
  context.streams().out << (as_table ? DamagesText(verification) : JsonText(DamagesJson(folder_, verification)));
  return verification.ok() ? kSucceeded : kMismatch;
}

}  // namespace

const CommandInfo kCheckpointVerify = {.name = "checkpoint verify",
                                       .help = "read a whole checkpoint and list its damage",
                                       .asks_daemon = false,
                                       .create = Create<CheckpointVerify>};

}  // namespace paramshard::ctl
