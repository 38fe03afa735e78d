// AdminService.ImportFile: imports masters from safetensors files that the daemon reads.
#ifndef PARAMSHARD_SERVER_EDGE_FILE_IMPORT_H_
#define PARAMSHARD_SERVER_EDGE_FILE_IMPORT_H_

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "paramshard/v1/admin.pb.h"
#include "server/edge/call.h"
#include "server/models/model_store.h"

namespace paramshard::server {

// The daemon reads files with its own rights, so only its own user and root may name them. PERMISSION_DENIED for
// others.
absl::Status CheckMayImportFile(uid_t caller);

// Checks every name, shape and dtype, reads this daemon's rows into memory, and then changes the model. A call that is
// cancelled changes nothing.
absl::StatusOr<v1::ImportFileResponse> ImportFile(const ModelStore& store, const v1::ImportFileRequest& request,
                                                  const Call& context);

absl::StatusOr<v1::ImportFileResponse> ImportFile(const std::shared_ptr<Model>& model,
                                                  const v1::ImportFileRequest& request,
                                                  absl::FunctionRef<bool()> cancelled);

// Repeats an import that was cut off by the end of the previous server: `source` is the record that ImportFile left
// (ChangeSource::Kind::kFiles), and `model` is unfinished(). Checks `cancelled` until the model is changed. DATA_LOSS
// if the files have changed since.
absl::Status ImportFileAgain(const std::shared_ptr<Model>& model, const std::string& source,
                             absl::FunctionRef<bool()> cancelled);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_FILE_IMPORT_H_
