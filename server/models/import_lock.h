// Exclusive right to replace a model's state.
#ifndef PARAMSHARD_SERVER_MODELS_IMPORT_LOCK_H_
#define PARAMSHARD_SERVER_MODELS_IMPORT_LOCK_H_

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/base/status_macros.h"
#include "server/models/model.h"

namespace paramshard::server {

// Holds the model's import lock (StateChanges::BeginImport) and the model until its destruction. Movable.
class ImportLock {
 public:
  // Errors of StateChanges::BeginImport.
  static absl::StatusOr<ImportLock> Begin(std::shared_ptr<Model> model) {
    RETURN_IF_ERROR(model->changes().BeginImport());
    return ImportLock(std::move(model));
  }
  // Errors of StateChanges::BeginRestore.
  static absl::StatusOr<ImportLock> BeginRestore(std::shared_ptr<Model> model) {
    RETURN_IF_ERROR(model->changes().BeginRestore());
    return ImportLock(std::move(model));
  }
  // For a change that was cut off (StateChanges::BeginImportAgain).
  static absl::StatusOr<ImportLock> BeginAgain(std::shared_ptr<Model> model) {
    RETURN_IF_ERROR(model->changes().BeginImportAgain());
    return ImportLock(std::move(model));
  }
  ImportLock(ImportLock&&) = default;
  ~ImportLock() {
    if (model_ != nullptr) model_->changes().ReleaseImportLock();
  }

  Model& model() const { return *model_; }

 private:
  explicit ImportLock(std::shared_ptr<Model> model) : model_(std::move(model)) {}

  std::shared_ptr<Model> model_;  // null when it was moved from
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MODELS_IMPORT_LOCK_H_
