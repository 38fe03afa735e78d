// gRPC service for readers: passes a model's planes to processes that read them.
#ifndef PARAMSHARD_SERVER_EDGE_READER_SERVICE_H_
#define PARAMSHARD_SERVER_EDGE_READER_SERVICE_H_

#include "absl/status/statusor.h"
#include "paramshard/v1/reader.pb.h"
#include "server/edge/guarded_service.h"
#include "server/mirrors/mirror.h"
#include "server/models/model_store.h"

namespace paramshard::server {

// Thread-safe; the arguments outlive the server that the service is registered with.
class ReaderService final : public GuardedService {
 public:
  // `mirror`: has the models instead of the store; null: this daemon is none.
  ReaderService(const ModelStore* store, const Mirror* mirror, Callers* callers, CallWorkers* workers);

 private:
  absl::StatusOr<v1::OpenReaderResponse> OpenReader(const Call& call, const v1::OpenReaderRequest& request);
  // Returns what this caller may read.
  absl::StatusOr<PublishedPlanes> Find(absl::string_view model, const Callers::Caller& caller) const;

  const ModelStore* const store_;
  const Mirror* const mirror_;
  Callers* const callers_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_READER_SERVICE_H_
