#include "client/ctl/commands.h"
#include "client/ctl/options.h"
#include "client/ctl/save_text.h"

namespace paramshard::ctl {
namespace {

class Saves final : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    app.add_option("model", model_, "a model's name; default: all models")->check(IsNotEmpty);
  }
  std::vector<std::string> Objects() const override { return {model_}; }
  absl::StatusOr<int> Run(const Context& context) override {
    v1::ListSavesRequest request;
    request.set_model(model_);
    return context.Show(&AdminClient::Stub::ListSaves, request, SavesText);
  }

 private:
  std::string model_;
};

}  // namespace

const CommandInfo kSaves = {
    .name = "saves", .help = "list recent saves, and saves in progress", .create = Create<Saves>};

}  // namespace paramshard::ctl
