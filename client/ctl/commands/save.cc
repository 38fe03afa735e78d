#include "client/ctl/commands.h"
#include "client/ctl/options.h"
#include "client/ctl/save_text.h"

namespace paramshard::ctl {
namespace {

bool CameToNothing(v1::SaveState state) {
  return state == v1::SAVE_STATE_ABANDONED || state == v1::SAVE_STATE_UNKNOWN || state == v1::SAVE_STATE_SKIPPED;
}

class Save final : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    AddModelArgument(app, model_);
    app.add_flag("--wait", wait_, "wait until the save is over; exit code 1 unless it is published");
  }
  std::vector<std::string> Objects() const override { return {model_}; }
  absl::StatusOr<int> Run(const Context& context) override;

 private:
  std::string model_;
  bool wait_ = false;
};

absl::StatusOr<int> Save::Run(const Context& context) {
  ASSIGN_OR_RETURN(AdminClient client, context.Connect());
  v1::SaveModelRequest request;
  request.set_model(model_);
  request.set_wait(wait_);
  v1::SaveModelResponse response;
  RETURN_IF_ERROR(
      client.Call(&AdminClient::Stub::SaveModel, request, response, wait_ ? RpcLength::kLong : RpcLength::kShort));
  RETURN_IF_ERROR(context.Write(response, SaveText).status());
  return CameToNothing(response.save().state()) ? kFailed : kSucceeded;
}

}  // namespace

const CommandInfo kSave = {.name = "save", .help = "save a model as a checkpoint", .create = Create<Save>};

}  // namespace paramshard::ctl
