// The turn to replace a model's state.
#ifndef PARAMSHARD_SERVER_MODELS_IMPORT_TURN_H_
#define PARAMSHARD_SERVER_MODELS_IMPORT_TURN_H_

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/base/status_macros.h"
#include "server/models/model.h"

namespace paramshard::server {

// Holds the model's turn (StateChanges::BeginImport) until it ends, and the model as long. Movable.
class ImportTurn {
 public:
  // Errors of StateChanges::BeginImport.
  static absl::StatusOr<ImportTurn> Begin(std::shared_ptr<Model> model) {
    RETURN_IF_ERROR(model->changes().BeginImport());
    return ImportTurn(std::move(model));
  }
  // Errors of StateChanges::BeginRestore.
  static absl::StatusOr<ImportTurn> BeginRestore(std::shared_ptr<Model> model) {
    RETURN_IF_ERROR(model->changes().BeginRestore());
    return ImportTurn(std::move(model));
  }
  // For a change that was cut off (StateChanges::BeginImportAgain).
  static absl::StatusOr<ImportTurn> BeginAgain(std::shared_ptr<Model> model) {
    RETURN_IF_ERROR(model->changes().BeginImportAgain());
    return ImportTurn(std::move(model));
  }
  ImportTurn(ImportTurn&&) = default;
  ~ImportTurn() {
    if (model_ != nullptr) model_->changes().EndTurn();
  }

  Model& model() const { return *model_; }

 private:
  explicit ImportTurn(std::shared_ptr<Model> model) : model_(std::move(model)) {}

  std::shared_ptr<Model> model_;  // null when it was moved from
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MODELS_IMPORT_TURN_H_
