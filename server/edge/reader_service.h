// gRPC service for readers: passes a model's planes to processes that read them.
#ifndef PARAMSHARD_SERVER_EDGE_READER_SERVICE_H_
#define PARAMSHARD_SERVER_EDGE_READER_SERVICE_H_

#include "absl/status/statusor.h"
#include "paramshard/v1/reader.pb.h"
#include "server/edge/guarded_service.h"
#include "server/models/model_store.h"

namespace paramshard::server {

// Thread-safe; the arguments outlive the server that the service is registered with.
class ReaderService final : public GuardedService {
 public:
  ReaderService(const ModelStore* store, Callers* callers, CallWorkers* workers);

 private:
  absl::StatusOr<v1::OpenReaderResponse> OpenReader(const Call& call, const v1::OpenReaderRequest& request);

  const ModelStore* const store_;
  Callers* const callers_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_READER_SERVICE_H_
