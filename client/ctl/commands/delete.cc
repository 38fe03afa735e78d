#include "client/ctl/commands.h"
#include "client/ctl/options.h"
#include "paramshard/v1/trainer.pb.h"

namespace paramshard::ctl {
namespace {

std::string DeleteText(const v1::DeleteModelResponse&) { return "deleted\n"; }

class Delete final : public Command {
 public:
  void AddOptions(CLI::App& app) override { AddModelArgument(app, model_); }
  std::vector<std::string> Objects() const override { return {model_}; }
  absl::StatusOr<int> Run(const Context& context) override {
    v1::DeleteModelRequest request;
    request.set_model(model_);
    return context.Show(&AdminClient::TrainerStub::DeleteModel, request, DeleteText);
  }

 private:
  std::string model_;
};

}  // namespace

const CommandInfo kDelete = {
    .name = "delete", .help = "delete a model of this daemon, and free its memory", .create = Create<Delete>};

}  // namespace paramshard::ctl
